"""Numbers that differ by a rounding are equal, others are not, and infinite ones stay."""

import pytest
import torch

from vantage.spec.ties import without_last_bits

INF = float("inf")


@pytest.mark.parametrize(("dtype", "near", "far"), [(torch.float64, 1e-13, 1e-9), (torch.float32, 1e-7, 1e-5)])
def test_what_differs_by_a_rounding_is_equal(dtype, near, far):
    x = torch.tensor([0.7, 0.7 + 0.7 * near, 0.7 + 0.7 * far, -3e-20, -3e-20 * (1 + near)], dtype=dtype)
    a, b, c, d, e = without_last_bits(x).tolist()
    assert a == b
    assert d == e
    assert a != c
    assert c == pytest.approx(x[2].item(), rel=10 * far)


def test_what_is_not_finite_stays():
    x = torch.tensor([INF, -INF, 0.0], dtype=torch.float64)
    assert without_last_bits(x).tolist() == [INF, -INF, 0.0]
