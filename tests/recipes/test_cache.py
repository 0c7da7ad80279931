"""The recipe of a kind of cache: one file and one line, and it is found wherever kinds of caches are."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.copies import ROOT, TEMPLATES, PackageCopy

USED = """
import tempfile
from pathlib import Path

import torch
import vantage as vt
from vantage.attention import Latent
from vantage.cache import CACHES
from vantage.cache.saved import Fingerprint, read_cache, save_cache
from vantage.conformance.factors import factors, rules
from vantage.conformance.scenarios import run_cell
from vantage.errors import BadInput, Refused
from vantage.inspect.cache_bytes import CacheSettings, cache_bytes
from vantage.model.norms import RMSNorm

assert "half" in CACHES
model = vt.build(vt.decoder(vocab=17, width=32, layers=2, heads=4)).eval()
tokens = torch.arange(12)[None] % 17

# in a model, and told from its neighbours by name
with torch.no_grad():
    whole = model(tokens)
    cache = model.new_cache(kind="half", capacity=16)
    stepped = torch.cat([model(tokens[:, :8], cache=cache), model(tokens[:, 8:], cache=cache)], 1)
assert 0 < float((whole - stepped).abs().max()) < 0.05
try:
    model.new_cache(kind="hallf")
except BadInput as e:
    assert "Did you mean 'half'?" in str(e), e

# saved and restored
mark = Fingerprint("tiny", "0" * 64)
with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    save_cache(cache, Path(folder) / "c", fingerprint=mark)
    again = read_cache(Path(folder) / "c", like=model.new_cache(kind="half"), fingerprint=mark).cache
    more = torch.tensor([[3]])
    assert torch.equal(model(more, cache=again), model(more, cache=cache))
    assert again.holds() == cache.holds()

# costs
assert cache_bytes(model.spec, CacheSettings(16, 1, torch.float32, "half")) == cache.bytes
assert vt.inspect.cost(model, context=16, kind="half").cache == cache.bytes

# the matrix
assert "half" in factors()["cache"]
for scenario in ("steps", "rollback", "fork"):
    error = run_cell(("rope", "grouped", "window", "half", "reference", scenario), torch.float64, "cpu")
    assert error < 1e-9, error
assert any(rule.where.get("cache") == ("half",) for rule in rules())
mla = Latent(4, kv_rank=12, nope_dim=8, rope_dim=8, value_dim=6, norm=RMSNorm())
latent = vt.build(vt.decoder(vocab=17, width=32, layers=1, attention=mla))
try:
    latent.new_cache(kind="half")
except Refused as e:
    assert "keys and values apart" in str(e)
else:
    raise AssertionError("not refused")
print("found everywhere")
"""


def test_a_kind_of_cache_is_one_file_and_one_line(tmp_path: Path) -> None:
    package = PackageCopy.of(tmp_path)
    package.add_file("cache.py", "vantage/cache/kinds/half.py")
    package.add_line("vantage/cache/kinds/__init__.py", '"quantised",', '"half",')
    assert len(package.edits) == 2
    assert "found everywhere" in package.run(USED)


def test_a_kind_of_cache_of_ones_own_is_found_as_well(tmp_path: Path) -> None:
    """Without a change of the package: registered from a file of the user's."""
    text = (TEMPLATES / "cache.py").read_text(encoding="utf-8")
    (tmp_path / "half_cache.py").write_text(
        text + '\n\nimport vantage as vt\n\nvt.register("cache", "half", HalfCache, refusals=ENTRY.refusals)\n'
    )
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import half_cache\n"
    assert "found everywhere" in PackageCopy(tmp_path).run(start + USED)
