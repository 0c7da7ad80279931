"""The candidates of bench/causal_variants against float64, with Triton's interpreter: small tiles, rows that do not
fill them, grouped heads, far and near tiles."""

import pytest
import torch

from bench.causal_variants.variants import LOG, NAMES, NONE, SLOPE, TABLE, Variant, errors, problem, variants
from tests.kernels.fused_calls import DEVICE, MISSING

FORMS = [NONE, SLOPE, LOG, TABLE]
KINDS = [Variant(16, 16), Variant(32, 16), Variant(16, 16, split=1, product=1), Variant(16, 32, split=1)]
needs_interpreter = pytest.mark.skipif(
    MISSING or DEVICE == "cuda", reason="needs Triton's interpreter: pip install triton"
)


def check(form: int, how: Variant) -> None:
    T = 150 if form == TABLE else 70  # so that a table has far tiles too
    x = problem(form, 1, 2, 1, T, 16, dtype=torch.float32, device="cpu", far=32 if form == LOG else 256)
    limit = 2e-4 if form == LOG else 1e-5  # a cubic for a logarithm, from two tiles away on
    assert {name: e for name, e in errors(x, how).items() if not e < limit} == {}


@needs_interpreter
@pytest.mark.parametrize(("form", "how"), list(zip(FORMS, KINDS, strict=True)), ids=str)
def test_candidates_are_attention(form, how):
    check(form, how)


@needs_interpreter
@pytest.mark.slow
@pytest.mark.parametrize("how", KINDS, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=NAMES.get)
def test_all_candidates_are_attention(form, how):
    check(form, how)


def test_each_variant_comes_once():
    chosen = variants()
    assert len(chosen) == len(set(chosen))
    assert {name for name, _, _ in chosen} == {"attend", "query_gradients", "key_gradients"}
