"""Parts of somebody's own, outside the package: one of each kind, as an installed package and as a plain file."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import vantage as vt
from tests.outside_package import good, install, run
from tests.recipes.copies import TEMPLATES
from vantage.errors import BadInput
from vantage.parts import KINDS, registry
from vantage.position import ENCODINGS
from vantage.spec.registry import Entry

REGISTER = """
import vantage as vt
from mine.attention import ENTRY as HALVED, Halved
from mine.cache import HalfCache
from mine.encoding import Fading
from mine.kernel import ENTRY as KERNEL, QueryByQuery
from mine.mask import ENTRY as DILATED, Dilated
from mine.task import LastSymbol

vt.register("position", "fading", Fading, title="Fading", summary="Scores fade with the root of the distance.")
vt.register("attention", "halved", Halved, default=HALVED.default, refusals=HALVED.refusals)
vt.register("mask", "dilated", Dilated, variants=DILATED.variants)
vt.register("cache", "half", HalfCache)
vt.register("kernel", "query-by-query", QueryByQuery, refusals=KERNEL.refusals)
vt.register("task", "last-symbol", LastSymbol)
"""

USE = """
import json
import torch
import vantage as vt
from mine.attention import Halved
from mine.mask import Dilated
from vantage.cache import CACHES
from vantage.conformance.factors import factors
from vantage.inspect.cost import cost
from vantage.kernels import KERNELS

kinds = factors()
for factor, name in (("encoding", "fading"), ("attention", "halved"), ("mask", "dilated"), ("cache", "half")):
    assert name in kinds[factor], (factor, kinds[factor])

torch.set_grad_enabled(False)
tokens = torch.tensor([[1, 2, 3, 4, 5]])
spec = vt.decoder(vocab=9, width=16, layers=2, attention=Halved(4), position="fading", mask=vt.Causal() & Dilated(2))
model = vt.build(spec).eval()
whole = model(tokens)
for kind in (*CACHES, "half"):
    if kind == "ring":  # wants a window
        continue
    cache = model.new_cache(kind=kind)
    steps = torch.cat([model(tokens[:, t : t + 1], cache=cache) for t in range(5)], 1)
    torch.testing.assert_close(steps, whole, rtol=0, atol=0.1 if kind in ("half", "quantised", "low-bit") else 1e-5)
for kernel in ("reference", "flex"):
    torch.testing.assert_close(vt.build(spec, kernel=kernel).eval()(tokens), whole, rtol=0, atol=1e-5)
bare = vt.decoder(vocab=9, width=16, layers=1, heads=2)
pair = [vt.build(bare, kernel=kernel).eval()(tokens) for kernel in ("query-by-query", "reference")]
torch.testing.assert_close(*pair)
assert vt.check(model).ok
assert cost(model, context=8).uncounted == ("Fading",)

vt.save(model, "saved")
written = json.dumps(json.load(open("saved/config.json"))["spec"])
assert all(path in written for path in ("mine.encoding:Fading", "mine.attention:Halved", "mine.mask:Dilated"))
assert torch.equal(vt.load("saved")(tokens), whole)
print("used everywhere")
"""

SETTINGS = """
[model]
is = "decoder"
width = 16
layers = 1
attention = {is = "halved", heads = 2}
position = {is = "fading", start = 1.0}
[data]
is = "task"
task = "last-symbol"
lengths = [1, 4]
test_examples = 4
[loop]
steps = 3
batch = 4
threads = 1
"""

COMPARE = ["--tasks", "last-symbol", "--positions", "fading", "rope", "--attention", "halved", "--train-length", "4"]
COMPARE += ["--test-lengths", "4", "8", "--steps", "3", "--seeds", "1", "--batch", "4", "--width", "16"]
COMPARE += ["--layers", "1", "--heads", "2", "--test-examples", "4", "--rates", "0.001", "--workers", "1"]

STUDIO = """
from pathlib import Path
from tests.serve.studios import running

with running(Path("studio")) as studio, studio.http() as http:
    offered = {one["name"]: one for one in http.get("/studio/api/positions").json()["encodings"]}
    assert offered["fading"]["title"] == "Fading" and offered["fading"]["parameters"][0]["high"] == 8.0
    shown = http.post("/studio/api/positions/show", json={"encoding": "fading", "values": {"start": 2.0}})
    assert {"bias", "decay"} <= {figure["name"] for figure in shown.json()["figures"]}, shown.text
    small = {"vocab": 50, "width": 32, "layers": 2, "heads": 4, "task": "last-symbol"}
    position = {"name": "fading", "values": {"start": 2.0}}
    built = http.post("/studio/api/build", json={"settings": small | {"position": position}})
    assert built.status_code == 200, built.text
    assert "import mine.encoding" in built.json()["code"] and "fading" in built.json()["toml"], built.text
    exec(built.json()["code"], {})
    built = http.post("/studio/api/build", json={"settings": small | {"position": {"name": "fading"}}})
    assert "import mine.encoding" in built.json()["code"], built.text  # by its name alone
    assert "halved" in http.get("/studio/api/build/choices").json()["attentions"]
    built = http.post("/studio/api/build", json={"settings": small | {"attention": "halved"}})
    assert built.status_code == 200, built.text
    assert "import mine.attention" in built.json()["code"] and "halved" in built.json()["toml"], built.text
    exec(built.json()["code"], {})
    unfit = http.post("/studio/api/build", json={"settings": small | {"attention": "halved", "softcap": 2.0}})
    assert unfit.status_code == 400 and "leave head_width" in unfit.text, unfit.text
    unknown = http.post("/studio/api/build", json={"settings": small | {"attention": "halfed"}})
    assert unknown.status_code == 400 and "Did you mean 'halved'" in unknown.text, unknown.text
print("offered")
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed package: its code, and the entry point that says where its parts are."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "mine").mkdir()
    (folder / "mine" / "__init__.py").touch()
    for name in ("encoding", "attention", "mask", "cache", "kernel", "task"):
        text = (TEMPLATES / f"{name}.py").read_text(encoding="utf-8")
        (folder / "mine" / f"{name}.py").write_text(text, encoding="utf-8")
    (folder / "mine" / "parts.py").write_text(REGISTER, encoding="utf-8")
    install(folder, "mine", "mine.parts")
    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain file with one part, which is on no path."""
    path = tmp_path_factory.mktemp("plain") / "my_parts.py"
    text = (TEMPLATES / "encoding.py").read_text(encoding="utf-8")
    path.write_text(f'{text}\n\nimport vantage as vt\n\nvt.register("position", "fading", Fading)\n', encoding="utf-8")
    return path


@pytest.mark.sampled
def test_an_installed_package_works_everywhere(package, tmp_path):
    assert good(run(tmp_path, "-c", USE, path=package)) == "used everywhere\n"
    unknown = run(tmp_path, "-c", "import vantage as vt; vt.load('saved')")
    assert unknown.returncode == 1
    assert "is a part from outside, and no such class has been registered: import the module" in unknown.stderr
    assert "mine.attention:Halved" in unknown.stderr


@pytest.mark.sampled
def test_it_is_trained_and_compared(package, tmp_path):
    (tmp_path / "run.toml").write_text(SETTINGS)
    good(run(tmp_path, "-m", "vantage", "train", "run.toml", "--out", "trained", path=package))
    assert "mine.encoding:Fading" in (tmp_path / "trained" / "model" / "config.json").read_text()
    listed = json.loads(good(run(tmp_path, "-m", "vantage", "compare", "--list", "--json", path=package)))
    assert ("last-symbol" in listed["tasks"], "fading" in listed["positions"], "halved" in listed["attentions"]) == (
        (True,) * 3
    )
    good(run(tmp_path, "-m", "vantage", "compare", *COMPARE, "--out", "compared", path=package))
    assert "fading" in (tmp_path / "compared" / "index.html").read_text()


@pytest.mark.sampled
def test_the_studio_offers_it(package, tmp_path):
    assert good(run(tmp_path, "-c", STUDIO, path=package)) == "offered\n"


SAVE = """
import vantage as vt
vt.save(vt.build(vt.decoder(vocab=9, width=16, layers=1, heads=2, position="fading")), "saved")
"""


@pytest.mark.sampled
def test_a_plain_file_is_named(file, tmp_path):
    cost = ("-m", "vantage", "inspect", "cost", "saved", "--context", "8")
    good(run(tmp_path, "-c", SAVE, VANTAGE_PARTS=str(file)))
    assert "my_parts:Fading" in (tmp_path / "saved" / "config.json").read_text()
    refused = run(tmp_path, *cost)
    assert refused.returncode == 2
    assert "'my_parts:Fading' is a part from outside" in refused.stderr
    good(run(tmp_path, *cost[:2], "--parts", str(file), *cost[2:]))
    settings = SETTINGS.replace('task = "last-symbol"', 'task = "copy"').replace(
        '{is = "halved", heads = 2}', '"grouped"'
    )
    (tmp_path / "run.toml").write_text(settings)
    ask = good(run(tmp_path, "-m", "vantage", "train", "run.toml", "--parts", str(file))).splitlines()[-1]
    assert ask.startswith("try it: vantage generate ")
    assert ask.endswith(f" --parts {file}")
    wrong = run(tmp_path, *cost[:2], "--parts", "nowhere.py", *cost[2:])
    assert wrong.returncode == 2
    assert "there is no file" in wrong.stderr


def test_a_file_in_the_folder_where_the_command_runs(file, tmp_path):
    """``python -m`` has that folder on its path, so Python finds the file as a module by itself."""
    mine = tmp_path / "my_parts.py"
    mine.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    listed = "from vantage.position import ENCODINGS; print('fading' in ENCODINGS)"
    assert good(run(tmp_path, "-c", listed, VANTAGE_PARTS="my_parts.py")) == "True\n"


@pytest.mark.parametrize(("name", "says"), [("my-parts", "is no Python name"), ("json", "would hide another module")])
def test_a_file_that_cannot_be_a_module_of_its_name(file, tmp_path, name, says):
    path = tmp_path / "elsewhere" / f"{name}.py"
    path.parent.mkdir()
    path.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    refused = run(tmp_path, "-m", "vantage", "check", "--parts", str(path))
    assert refused.returncode == 2
    assert says in refused.stderr
    assert repr(name) in refused.stderr


# ---- in this process


@pytest.fixture
def taken_out():
    yield
    for kind in KINDS:
        for entry in registry(kind).from_outside():
            registry(kind).unregister(entry.name)


def test_a_decorator_does_as_a_call(taken_out):
    @vt.register("position", "none-of-mine", title="Mine")
    @dataclass(frozen=True)
    class Mine:
        def parts(self, *, causal):
            return vt.NoPE().parts(causal=causal)

    assert Mine.__name__ == "Mine"
    assert ENCODINGS["none-of-mine"].make() == Mine()
    assert vt.decoder(vocab=9, width=16, layers=1, heads=2, position="none-of-mine").layers[0].qk == ()


def test_a_norm_and_a_feed_forward_layer_by_name(taken_out):
    @vt.register("norm", "loose-rms")
    @dataclass(frozen=True)
    class LooseRMS:
        def build(self, width):
            return vt.RMSNorm(eps=0.1).build(width)

    @vt.register("feed-forward", "thin", default=lambda width: Thin((width or 2) // 2))
    @dataclass(frozen=True)
    class Thin:
        hidden: int

        def build(self, width):
            return vt.FeedForward(self.hidden, "relu").build(width)

    layer = vt.decoder(vocab=9, width=16, layers=1, heads=2, norm="loose-rms", ffn="thin").layers[0]
    assert (layer.norm, layer.ffn) == (LooseRMS(), Thin(8))


def test_what_is_refused(taken_out):
    @dataclass(frozen=True)
    class Idle:
        pass

    @dataclass
    class Loose:
        def parts(self, *, causal): ...

    for arguments, says in (
        (("position", "rope", Idle), "a position encoding is called 'rope' already"),
        (("position", "idle", Idle), "has no parts: every position encoding needs parts"),
        (("position", "loose", Loose), "is no frozen dataclass: write @dataclass"),
        (("positon", "idle", Idle), "no kind of part is called 'positon'. Did you mean 'position'"),
        (("task", "", Idle), "give the name that users write"),
    ):
        with pytest.raises(BadInput, match=says):
            vt.register(*arguments)
    assert set(inspect.signature(vt.register).parameters) == {"kind", *Entry.__dataclass_fields__}
