"""GELU between two products: our operators are torch's, in all that a compiler and a stack of models do with them."""

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from tests.attention.helpers import F64, vectors
from vantage.model import build, decoder
from vantage.model.gelu import Gelu, backward_op, forward_op, gelu

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def slope(x: Tensor, grad: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (made,) = torch.autograd.grad(F.gelu(x), x, grad)
    return made


@pytest.mark.parametrize("turned", [False, True])
def test_the_operators_are_torchs(turned: bool):
    x, grad = vectors(3, 4, 5), vectors(3, 4, 5, seed=1)
    if turned:
        x, grad = x.transpose(0, 2), grad.transpose(0, 2)
    torch.testing.assert_close(forward_op(x), F.gelu(x), rtol=0, atol=1e-15)
    torch.testing.assert_close(backward_op(x, grad), slope(x, grad), rtol=0, atol=1e-15)
    torch.library.opcheck(forward_op, (x,))
    torch.library.opcheck(backward_op, (x, grad))


@pytest.mark.parametrize("dims", [(0, 0), (1, None), (None, 2)])
def test_under_vmap(dims: tuple[int | None, int | None]):
    """Each model of a stack as if it were alone, wherever the dimension of models stands."""
    full = vectors(4, 4, 4), vectors(4, 4, 4, seed=1)
    given = [t[0] if dim is None else t for t, dim in zip(full, dims, strict=True)]
    wanted = torch.func.vmap(slope_by_formula, in_dims=dims)(*given)
    torch.testing.assert_close(torch.func.vmap(backward_op, in_dims=dims)(*given), wanted, rtol=0, atol=1e-15)
    torch.testing.assert_close(torch.func.vmap(forward_op, in_dims=1)(full[0]), F.gelu(full[0]).movedim(1, 0))


def slope_by_formula(x: Tensor, grad: Tensor) -> Tensor:
    return grad * (torch.special.ndtr(x) + x * torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5)


def test_its_gradient_compiled():
    x = vectors(3, 4, 5).requires_grad_()
    compiled = torch.compile(lambda x: (Gelu.apply(x) * 2).sum(), backend="aot_eager", fullgraph=True)
    (found,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(found, slope(x, torch.full_like(x, 2.0)), rtol=0, atol=1e-15)


def test_where_no_compiler_is_at_work_it_is_torchs():
    x = vectors(3, 4).float()
    assert torch.equal(gelu(x), F.gelu(x))
    assert torch.equal(torch.compile(gelu, backend="eager", fullgraph=True)(x), F.gelu(x))


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [1, 2047, 2**20 + 3])
def test_on_a_gpu(dtype: torch.dtype, n: int):
    x = torch.linspace(-9, 9, n, device="cuda").to(dtype)
    grad = torch.randn(n, device="cuda").to(dtype)
    half = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(forward_op(x).to(F64), F.gelu(x.to(F64)), rtol=1.01 * half, atol=5e-7)
    wanted = slope(x.to(F64), grad.to(F64))
    torch.testing.assert_close(backward_op(x, grad).to(F64), wanted, rtol=1.01 * half, atol=1e-6)


@needs_gpu
def test_extremes_on_a_gpu():
    x = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1e4, -1e4], device="cuda").bfloat16()
    torch.testing.assert_close(forward_op(x), F.gelu(x), rtol=0, atol=0, equal_nan=True)
    assert forward_op(x[:0]).shape == (0,)


@needs_gpu
def test_a_model_compiled_on_a_gpu_takes_it_and_learns_the_same():
    torch.manual_seed(0)
    model = build(decoder(vocab=20, width=64, layers=2, heads=4, ffn="gelu")).to("cuda", torch.bfloat16)
    tokens = torch.randint(20, (4, 30), device="cuda")
    names: list[str] = []

    def loss() -> Tensor:
        return F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())

    def seen(graph: torch.fx.GraphModule, example: list[Tensor]):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    compiled = torch.compile(loss, backend=aot_autograd(fw_compiler=seen))
    grads = [torch.autograd.grad(of(), list(model.parameters())) for of in (loss, compiled)]
    assert sum("vantage.gelu.default" in name for name in names) == 2
    assert sum("vantage.gelu_back.default" in name for name in names) == 2
    for plain, other in zip(*grads, strict=True):
        torch.testing.assert_close(other, plain, rtol=0.05, atol=0.01)
