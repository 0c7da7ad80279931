"""Adding a kernel, as CONTRIBUTING.md says it: one file and one line in the registry."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.copies import PackageCopy

CHECK = """
import torch
import vantage as vt
from vantage.conformance.matrix import run_matrix
from vantage.errors import Refused
from vantage.kernels import KERNELS
from vantage.parts import table

spec = vt.decoder(vocab=9, width=16, layers=1, heads=2)
tokens = torch.tensor([[1, 2, 3, 4]])
outs = [vt.build(spec, kernel=kernel).eval()(tokens) for kernel in ("query-by-query", "reference")]
torch.testing.assert_close(*outs)
try:
    vt.build(vt.decoder(vocab=9, width=16, layers=1, heads=2, position="alibi"), kernel="query-by-query")(tokens)
    raise SystemExit("ran")
except Refused as e:
    assert "query-by-query has no biases" in str(e)

report = run_matrix(strength=1, filter="/query-by-query/")
biased = "query-by-query has no biases"  # such cells are refused, in words
assert report.results and all(result.ok or biased in result.note for result in report.results), report.results
assert any(result.ok for result in report.results)
assert any("`query-by-query` | `QueryByQuery`" in line for line in table("kernel", KERNELS))
print("found everywhere")
"""


def test_a_kernel_is_one_file_and_one_line(tmp_path: Path) -> None:
    copy = PackageCopy.of(tmp_path)
    copy.add_file("kernel.py", "vantage/kernels/query_by_query.py")
    copy.add_line("vantage/kernels/select.py", "flex.UNFUSED,", '*entries_of("vantage.kernels", "query_by_query"),')
    assert copy.run(CHECK) == "found everywhere\n"
    assert len(copy.edits) == 2
