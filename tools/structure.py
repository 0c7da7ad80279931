"""How the tree reads, in numbers: ``python tools/structure.py [ROOT]``.

Counted from the source text of ``ROOT/vantage`` with Python's own parser, so that any two commits can be compared:

    git worktree add /tmp/before COMMIT && python tools/structure.py /tmp/before

``--hops`` also runs ``vt.generate`` of that tree on a tiny model and follows it to the attention kernel.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# One part of each kind that is no special case. A new one must be named wherever this one is.
EXAMPLES = {
    "encoding": ("position/kerple.py", ("Kerple", "kerple")),
    "attention": ("attention/latent.py", ("Latent", "LatentAttention")),
    "cache": ("cache/ring.py", ("Ring", "ring")),
    "task": ("t*/tasks/sorting.py", ("BucketSort", "bucket-sort")),
}
VAGUE = ("said", "told", "made", "found", "there")


def sources(root: Path) -> dict[str, ast.Module]:
    """Every file of the package, by its path in it."""
    package = root / "vantage"
    return {
        str(file.relative_to(package)): ast.parse(file.read_text(encoding="utf-8"))
        for file in sorted(package.rglob("*.py"))
    }


def repeated_classes(trees: dict[str, ast.Module]) -> dict[str, int]:
    names = Counter(node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {name: count for name, count in sorted(names.items()) if count > 1}


def private_accesses(trees: dict[str, ast.Module]) -> dict[str, int]:
    """Reads and writes of ``x._name``, x not self or cls, where this file defines no ``_name``."""
    counts: Counter[str] = Counter()
    for path, tree in trees.items():
        own = {name for name in _defined(tree) if name.startswith("_")}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and re.fullmatch(r"_[a-z]\w*", node.attr):
                counts[path] += node.attr not in own and not _is_self(node.value)
    return {path: count for path, count in counts.items() if count}


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr


def isinstance_by_package(trees: dict[str, ast.Module]) -> dict[str, int]:
    """Questions after a class of ours (a name with a capital letter that is not torch's or Python's)."""
    counts: Counter[str] = Counter()
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                asked = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                if any(name[0].isupper() and name not in OTHERS for name in asked):
                    counts[path.split("/")[0]] += 1
    return dict(sorted(counts.items()))


OTHERS = {"Tensor", "Path", "Iterable", "Sequence", "Mapping", "Callable", "Module", "Parameter"}


def vague_values(trees: dict[str, ast.Module]) -> int:
    """How often a variable, an argument or a field is given one of these names."""
    return sum(
        (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE)
        or (isinstance(node, ast.arg) and node.arg in VAGUE)
        for tree in trees.values()
        for node in ast.walk(tree)
    )


def edits(root: Path) -> dict[str, dict[str, int]]:
    """For a part of each kind, the lines outside its own file that name it: what a new one costs, and where.

    Its tests, the documentation and the places that use it on purpose (families, studies, recipes) are not counted.
    """
    result: dict[str, dict[str, int]] = {}
    for kind, (own, names) in EXAMPLES.items():
        pattern = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in names))
        counts: dict[str, int] = {}
        for file in sorted((root / "vantage").rglob("*.py")):
            path = file.relative_to(root / "vantage")
            if path.match(own) or path.parts[0] in ("families", "studies", "functional", "functional.py"):
                continue
            lines = _code_lines(file.read_text(encoding="utf-8"))
            if count := sum(bool(pattern.search(line)) for line in lines):
                counts[str(path)] = count
        result[kind] = counts
    return result


def _code_lines(text: str) -> list[str]:
    """The lines without comments and docstrings."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                for i in range(first.lineno - 1, first.end_lineno or first.lineno):
                    lines[i] = ""
    return [line.split("  #")[0] for line in lines if not line.lstrip().startswith("#")]


def sizes(root: Path, trees: dict[str, ast.Module]) -> dict[str, object]:
    lines = {path: len((root / "vantage" / path).read_text(encoding="utf-8").splitlines()) for path in trees}
    functions = [
        ((node.end_lineno or 0) - node.lineno + 1, f"{path}:{node.name}")
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    return {
        "files": len(lines),
        "lines": sum(lines.values()),
        "files over 400 lines": sorted(path for path, n in lines.items() if n > 400),
        "functions over 60 lines": sum(n > 60 for n, _ in functions),
        "longest function": max(functions),
    }


# ---- the way from vt.generate to the kernel

HOPS = """
import json, os, sys, threading
import torch, vantage as vt
package = os.path.dirname(vt.__file__)
torch.manual_seed(0)
model = vt.build(vt.decoder(vocab=40, width=16, layers=1, heads=4), seed=0).eval()
model.kernel = "reference"
prompt = [1, 2, 3]
run = lambda: vt.generate(model, [prompt], max_tokens=4, temperature=0.0)
run()
names, step, deepest = {}, {}, []
def profile(frame, event, arg):
    file = frame.f_code.co_filename
    if event == "call" and file.startswith(package):
        name = os.path.relpath(file, package) + ":" + frame.f_code.co_qualname
        if "<" in frame.f_code.co_name:
            return
        if frame.f_code.co_qualname == "Engine.step":
            step.clear()
        names[name] = step[name] = None
        if "kernels/reference.py" in name and "__call__" in name and not deepest:
            f = frame
            while f is not None:
                if f.f_code.co_filename.startswith(package) and "<" not in f.f_code.co_name:
                    deepest.append(os.path.relpath(f.f_code.co_filename, package) + ":" + f.f_code.co_qualname)
                f = f.f_back
threading.setprofile(profile)
sys.setprofile(profile)
run()
sys.setprofile(None)
threading.setprofile(None)
print(json.dumps({"depth": deepest[::-1], "step": list(step), "names": list(names)}))
"""


def hops(root: Path) -> dict[str, list[str]]:
    """The calls open when the first kernel runs (``depth``); the functions of ours that ran in the last step (``step``)
    and in all (``names``)."""
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", HOPS], cwd=root, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--hops", action="store_true", help="also run vt.generate and follow it to the kernel")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    trees = sources(args.root)
    counts: dict[str, object] = {
        "edits": edits(args.root),
        "repeated class names": repeated_classes(trees),
        "private accesses": private_accesses(trees),
        "isinstance": isinstance_by_package(trees),
        "vague values": vague_values(trees),
        **sizes(args.root, trees),
    }
    if args.hops:
        counts["hops"] = hops(args.root)
    if args.json:
        print(json.dumps(counts, indent=1))
        return
    show(counts)


def show(counts: dict[str, object]) -> None:
    for name, value in counts.items():
        if name == "edits":
            assert isinstance(value, dict)
            for kind, places in value.items():
                files = ", ".join(f"{file} {n}" for file, n in places.items())
                print(f"a new {kind}: {sum(places.values())} lines in {len(places)} files ({files})")
        elif name == "hops":
            assert isinstance(value, dict)
            print(
                f"vt.generate to the kernel: {len(value['depth'])} calls deep, {len(value['step'])} functions "
                f"in a step, {len(value['names'])} in all"
            )
        elif isinstance(value, dict):
            shown = ", ".join(f"{key} {n}" for key, n in sorted(value.items(), key=lambda item: (-item[1], item[0])))
            print(f"{name}: {len(value)} kinds, {sum(value.values())} in all ({shown})")
        else:
            print(f"{name}: {value}")


if __name__ == "__main__":
    main()
