"""What ``kernel="auto"`` takes on a GPU. Tensors are torch's fake ones: they have a device, and nothing is computed."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vantage.errors import Refused
from vantage.inspect.kernels import kernel_choices
from vantage.kernels import chooser, cudnn, documents, explain, fused, sdpa
from vantage.kernels.recurring import RecurringShapes
from vantage.model import build, decoder
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import FeedForward
from vantage.spec.forms import Slope
from vantage.spec.masks import Causal, SameSegment, Window
from vantage.spec.parts import Dense, Need, View
from vantage.spec.positions import Positions


@pytest.fixture(autouse=True)
def triton(monkeypatch):
    """As if Triton were here and cuDNN's front end were not: whether they are, is another test's question."""
    monkeypatch.setattr(fused, "cannot_run", lambda device: None)
    monkeypatch.setattr(cudnn, "cannot_run", lambda device: "left out")


@pytest.fixture
def fake():
    with FakeTensorMode():
        yield


def asked(
    T: int, S: int | None = None, *, batch: int = 4, groups: int = 16, width: int = 128, grad: bool = False, **need
):
    S = T if S is None else S
    q = torch.empty(batch, 16, T, width, dtype=torch.bfloat16, device="cuda", requires_grad=grad)
    k, v = (torch.empty(batch, groups, S, width, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    need = {"mask": Causal() & SameSegment()} | need
    return Need(scale=0.1, **need), q, View(k, v, Positions.arange(batch, S, device="cuda"))


def slopes(value: float = 1.0) -> Slope:
    return Slope(torch.full((16,), value, device="cuda"))


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("kernel", "lengths", "need"),
    [
        ("sdpa", (4096, None), {}),  # trained on: cuDNN, which has a plan
        ("sdpa", (128, None), {"bias": "slope"}),  # a small bias is soon formed
        ("fused", (4096, None), {"bias": "slope"}),
        ("sdpa", (1024, None), {"mask": Causal() & Window(256)}),  # a mask of a million places, 67 million pairs
        ("fused", (2048, None), {"mask": Causal() & Window(256)}),  # four times as many of both
        ("fused", (4096, None), {"mask": Causal() & Window(256)}),
        ("fused", (4096, 8192), {}),  # a chunk behind a cache
        ("fused", (4096, None), {"softcap": 20.0}),
        ("fused", (128, None), {"softcap": 20.0}),
        ("sdpa", (1, 65_536), {"bias": "slope"}),  # one query: nothing is as large as pairs
    ],
)
def test_what_runs_on_a_gpu(kernel, lengths, need):
    need = {name: slopes() if value == "slope" else value for name, value in need.items()}
    asks = asked(*lengths, grad=True, **need)
    assert chooser("auto")(*asks).name == kernel
    reasons = explain(*asks)
    assert [name for name, why in reasons.items() if why == "runs"] == [kernel]
    assert all(reasons.values())


@pytest.mark.usefixtures("fake")
def test_without_gradients_a_long_row_has_no_plan(monkeypatch):
    monkeypatch.setattr(sdpa, "_shapes", RecurringShapes(sdpa.PAYS_AFTER))  # none has come before
    with torch.no_grad():
        assert chooser("auto")(*asked(8192)).name == "fused"
        assert chooser("auto")(*asked(1024)).name == "sdpa"
        assert (
            explain(*asked(8192))["sdpa"] == "its plan pays off only for long rows, from the third pass of a shape on"
        )


@pytest.mark.usefixtures("fake")
def test_gradients_of_grouped_keys_go_where_they_take_less_memory(monkeypatch):
    monkeypatch.setattr(documents, "has_gluon", lambda device: True)
    for length, groups, kernel in ((8192, 4, "fused"), (8192, 16, "sdpa"), (2048, 4, "sdpa")):
        need, q, view = asked(length, groups=groups, grad=True)
        assert chooser("auto")(need, q, view).name == kernel
        reason = explain(need, q, view)["sdpa"]
        assert reason == (
            "runs" if kernel == "sdpa" else "the fused kernel makes these gradients in less time or memory"
        )


@pytest.mark.usefixtures("fake")
def test_layers_that_ask_for_the_same_are_answered_once_in_a_pass(monkeypatch):
    refuses, times = sdpa.Sdpa.refuses, []
    monkeypatch.setattr(sdpa.Sdpa, "refuses", lambda self, *asks: (times.append(asks), refuses(self, *asks))[1])
    choose, (need, q, view) = chooser("auto"), asked(1024)
    assert [choose(need, q, view).name for _ in range(3)] == ["sdpa"] * 3
    assert len(times) == 1
    assert choose(replace(need, softcap=2.0), q, view).name == "fused"  # another need
    assert choose(need, asked(512, 1024)[1], view).name == "sdpa"  # another shape
    assert len(times) == 3
    with torch.no_grad():
        choose(need, q, view)
    assert len(times) == 4
    choose(need, asked(1024, grad=True)[1], view)  # a layer that learns after one that does not
    assert len(times) == 5
    choose(need, q, view._replace(pos=Positions.arange(4, 1024, device="cuda")))  # another pass
    assert len(times) == 6


@pytest.mark.usefixtures("fake")
def test_what_has_yielded_is_asked_again(monkeypatch):
    """A kernel that waits for a shape to come again counts every layer."""
    of_a_layer = 2.0 * 4 * 16 * 8192 * 8192 * 256
    monkeypatch.setattr(sdpa, "_shapes", RecurringShapes(1.5 * of_a_layer))
    asks = asked(8192)
    with torch.no_grad():
        assert [chooser("auto")(*asks).name for _ in range(3)] == ["fused", "sdpa", "sdpa"]


@pytest.mark.usefixtures("fake")
def test_nothing_runs_unasked_that_would_form_too_much():
    need, q, view = asked(16_384, batch=1)
    bias = Dense(torch.empty(1, 16, 16_384, 16_384, dtype=torch.bfloat16, device="cuda"))
    assert bias.value.numel() == 2**32
    with_bias = replace(need, bias=bias)
    assert chooser("auto")(with_bias, q, view).name == "blocks"
    reasons = explain(with_bias, q, view)
    assert (reasons["blocks"], reasons["reference"]) == ("runs", "it would form 4,294,967,296 numbers")
    need, q, view = asked(16_385, batch=1, weights=True)
    with pytest.raises(
        Refused, match=r"16,385 queries over 16,385 keys would form 4,295,491,600 .* kernel='reference'"
    ):
        chooser("auto")(need, q, view)
    assert chooser("reference")(need, q, view).name == "reference"  # asked for, it runs


@pytest.mark.usefixtures("fake")
def test_compiled_flex_refuses_what_its_indices_cannot_count():
    need, q, view = asked(16_384, batch=1, bias=Dense(torch.empty(1, 16, 16_384, 16_384, device="cuda")))
    assert "32 bits" in explain(need, q, view)["flex-compiled"]


# ---- asked of a model


def small(position: str):
    return build(decoder(vocab=64, width=128, layers=3, heads=2, position=position))


def test_a_model_says_what_each_layer_runs():
    model = small("alibi")
    choices = kernel_choices(model, context=100_000, device="cpu")  # nothing is computed
    assert [choice.site for choice in choices] == ["self 0", "self 1", "self 2"]
    assert [(choice.kernel, choice.others) for choice in choices] == [
        (
            "tiles",
            {
                "sdpa": "it would form 20,000,000,000 numbers",
                "chosen": "the chosen kernel is for sparse attention, where each query has a list of keys",
                "reference": "not needed: an earlier one accepts",
                "blocks": "not needed: nothing large is formed",
            },
        )
    ] * 3
    learning = kernel_choices(model, context=100_000, device="cpu", train=True)
    assert [(choice.kernel, choice.others["tiles"]) for choice in learning] == [
        ("blocks", "the tiles kernel has no backward pass")
    ] * 3
    assert kernel_choices(small("rope"), context=512, device="cpu")[0].others["sdpa"] == "slower than tiles here"
    assert kernel_choices(small("rope"), context=63, device="cpu")[0].kernel == "sdpa"
    out = model(torch.zeros(1, 4, dtype=torch.long))  # the model is as it was
    assert out.isfinite().all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_model_with_experts_says_it_too():
    """Which tokens go to an expert is not known where nothing is computed."""
    spec = decoder(vocab=16, width=32, layers=2, heads=2, position="rope")
    experts = Experts(FeedForward(16, "silu"), 4, TopK(2))
    model = build(replace(spec, layers=tuple(replace(layer, ffn=experts) for layer in spec.layers)))
    choices = kernel_choices(model, context=100_000, device="cpu")
    assert [choice.kernel for choice in choices] == ["tiles"] * 2
    assert type(model.blocks[0].steps[1].sublayer).__name__ == "_Experts"  # they are back in their place


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_here():
    with pytest.raises(Refused, match="there is no GPU here to ask for"):
        kernel_choices(small("rope"), device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_model_on_a_gpu():
    choices = kernel_choices(small("alibi"), context=4096, batch=2, dtype=torch.bfloat16, train=True, device="cuda")
    assert {choice.kernel for choice in choices} == {"fused"}
    assert choices[0].others["sdpa"] == "it would form 33,554,432 numbers"
    assert kernel_choices(small("fire"), context=4096, dtype=torch.bfloat16, device="cuda")[0].kernel == "fused"
    # RoPE's own kernel would read memory, and there is none
    assert kernel_choices(small("rope"), context=1024, dtype=torch.bfloat16, device="cuda")[0].kernel == "sdpa"
