"""The other library's products are torch's, gradients and all, and are taken where they are faster alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from vantage.kernels import product
from vantage.kernels.product import linear

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch):
    """On any processor, and for small products."""
    monkeypatch.setattr(product, "AMD", True)
    monkeypatch.setattr(product, "MIN_MULTIPLY_ADDS", 100)


def tensors(*shape: int, bias: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    made = torch.Generator().manual_seed(0)
    x, weight = torch.randn(*shape, generator=made), torch.randn(12, shape[-1], generator=made)
    return x, weight, torch.randn(12, generator=made) if bias else None


def taken(out: Tensor) -> bool:
    return out.grad_fn is not None and out.grad_fn.name() == "ProductWithGradientBackward"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 16), (2, 3, 16), (2, 3, 4, 16)])
@pytest.mark.parametrize("wanted", ["x", "weight", "all"])
def test_as_torchs(shape: tuple[int, ...], bias: bool, wanted: str):
    x, weight, b = tensors(*shape, bias=bias)
    of = {"x": [x], "weight": [weight], "all": [t for t in (x, weight, b) if t is not None]}[wanted]
    leaves = [t.requires_grad_() for t in of]
    found, plain = linear(x, weight, b), F.linear(x, weight, b)
    assert taken(found)
    torch.testing.assert_close(found, plain)
    up = torch.randn_like(plain)
    for a, c in zip(*(torch.autograd.grad(out, leaves, up) for out in (found, plain)), strict=True):
        torch.testing.assert_close(a, c)


def test_over_strides():
    x, weight, b = tensors(16, 5, 16)
    x, weight = x.transpose(0, 2).requires_grad_(), weight.t().contiguous().t()
    torch.testing.assert_close(linear(x, weight, b), F.linear(x, weight, b))
    torch.testing.assert_close(*(torch.autograd.grad(f(x, weight, b).square().sum(), x)[0] for f in (linear, F.linear)))


def test_a_gradient_of_the_gradient():
    x, weight, b = tensors(7, 16)
    for t in (x, weight):
        t.requires_grad_()
    found = []
    for f in (linear, F.linear):
        (once,) = torch.autograd.grad(f(x, weight, b).tanh().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(once.square().sum(), (x, weight)))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-4)  # sums of squares, in another order on some processors


def test_compiled():
    x, weight, b = tensors(2, 3, 16)
    leaves = [t.requires_grad_() for t in (x, weight, b) if t is not None]
    loss = torch.compile(lambda x, weight, b: linear(x, weight, b).tanh().sum(), fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(loss(x, weight, b), leaves)
    torch.testing.assert_close(found, torch.autograd.grad(F.linear(x, weight, b).tanh().sum(), leaves))
    torch.library.opcheck(product._opaque, (x.detach(), weight.detach(), None))


def test_operations_are_counted():
    x, weight, b = tensors(7, 16)
    for t in (x, weight):
        t.requires_grad_()
    counts = []
    for f in (linear, F.linear):
        with FlopCounterMode(display=False) as counter:
            f(x, weight, b).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts == [3 * 2 * 7 * 16 * 12] * 2


def test_where_it_is_not_taken(monkeypatch: pytest.MonkeyPatch):
    x, weight, b = tensors(7, 16)
    weight.requires_grad_()
    assert taken(linear(x, weight, b))
    assert not taken(linear(x[0], weight, b))
    assert not taken(linear(x.double(), weight.double(), None))
    with torch.no_grad():
        assert linear(x, weight, b).grad_fn is None
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight, b).dtype == torch.bfloat16
    stacked = torch.func.vmap(lambda w: linear(x, w, None))(torch.stack((weight, weight)))
    torch.testing.assert_close(stacked[1], F.linear(x, weight))
    monkeypatch.setattr(product, "MIN_MULTIPLY_ADDS", 7 * 16 * 12 + 1)
    assert not taken(linear(x, weight, b))
    monkeypatch.setattr(product, "MIN_MULTIPLY_ADDS", 7 * 16 * 12)
    assert taken(linear(x, weight, b))
    monkeypatch.setattr(product, "AMD", False)
    assert not taken(linear(x, weight, b))


def test_a_processor_is_known_by_its_maker(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(product.Path, "read_text", lambda self: "vendor_id : GenuineIntel")
    monkeypatch.delenv("PROCESSOR_IDENTIFIER", raising=False)
    assert not product._amd()
    monkeypatch.setenv("PROCESSOR_IDENTIFIER", "AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD")
    assert product._amd() == torch.backends.mkl.is_available()
