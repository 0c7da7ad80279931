"""Which kernel runs, and what each refuses."""

from dataclasses import replace

import pytest
import torch

from tests.kernels.helpers import call, normal
from vantage.errors import BadInput, Refused
from vantage.kernels import KERNELS, chooser, flex, kernel_named
from vantage.kernels.sdpa import TILES_FROM_QUERIES
from vantage.model import build, decoder
from vantage.spec.normalisers import Argmax, Softmax
from vantage.spec.positions import Positions


class AnyValueBias:
    def at(self, weights, q_pos, k_pos):
        return weights


PLAIN = {"scale": 1.0}
ASKS = {
    "weights": {"weights": True},
    "lse": {"lse": True},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": normal(4, seed=0)},
    "value bias": {"value_bias": AnyValueBias()},
    "argmax": {"normalise": Argmax()},
    "dropout": {"dropout": 0.1},
    "temperature": {"normalise": Softmax(2.0)},
}
REFUSALS = {
    "reference": {},
    "blocks": {"weights": "the blocks kernel does not hand back weights"},
    "blocks-of-2": {"weights": "the blocks kernel does not hand back weights"},
    "sdpa": {
        "weights": "sdpa does not hand back weights or the log-sum-exp",
        "lse": "sdpa does not hand back weights or the log-sum-exp",
        "softcap": "sdpa has no softcap",
        "sinks": "sdpa has no sinks",
        "value bias": "a value bias needs the weights, which sdpa does not form",
        "argmax": "sdpa has softmax alone, not Argmax",
    },
    "flex": {
        "weights": "flex does not hand back weights",
        "value bias": "a value bias needs the weights, which flex does not form",
        "argmax": "flex has softmax alone, not Argmax",
        "dropout": "flex has no dropout",
    },
}


@pytest.mark.parametrize("kernel", REFUSALS)
@pytest.mark.parametrize("ask", ASKS)
def test_what_a_kernel_refuses_and_why(kernel, ask):
    c = call()
    assert kernel_named(kernel).refuses(c.need, c.q, c.view) is None
    assert kernel_named(kernel).refuses(replace(c.need, **ASKS[ask]), c.q, c.view) == REFUSALS[kernel].get(ask)


@pytest.mark.parametrize("kernel", REFUSALS)
@pytest.mark.parametrize("ask", ASKS)
def test_what_is_not_refused_works(kernel, ask):
    if ask not in REFUSALS[kernel]:
        c = call(1, 2, 2, 5, 5, d_v=5)
        got = c.run(kernel_named(kernel), **ASKS[ask])
        assert got.out.shape == (1, 4, 5, 5)
        assert (got.weights is not None) == (ask == "weights")
        assert (got.lse is not None) == (ask == "lse")


def test_flex_has_no_backward_on_a_cpu():
    c = call()
    for learning in (c.q, c.view.k):
        learning.requires_grad_()
        assert "backward" in (kernel_named("flex").refuses(c.need, c.q, c.view) or "")
        with torch.no_grad():
            assert kernel_named("flex").refuses(c.need, c.q, c.view) is None
        learning.requires_grad_(False)
    elsewhere = c.q.to("meta").requires_grad_()
    assert "unfused" in (kernel_named("flex").refuses(c.need, elsewhere, c.view) or "")
    assert kernel_named("flex-compiled").refuses(c.need, elsewhere, c.view) is None
    with torch.no_grad():
        assert kernel_named("flex").refuses(c.need, elsewhere, c.view) is None


def test_compiled_flex_gives_no_log_sum_exp_on_a_cpu():
    c, kernel = call().to(torch.float32), kernel_named("flex-compiled")
    for asked in ({"lse": True}, {"sinks": normal(4, seed=0)}):
        need = replace(c.need, **asked)
        assert "does not give the log-sum-exp on a CPU" in (kernel.refuses(need, c.q, c.view) or "")
        assert kernel.refuses(need, c.q.to("meta"), c.view) is None
        assert kernel_named("flex").refuses(need, c.q, c.view) is None


def test_compiled_flex_has_no_float64_on_a_cpu():
    c, kernel = call(), kernel_named("flex-compiled")
    assert kernel.refuses(c.need, c.q, c.view) == "compiled flex has no float64 on a CPU"
    assert kernel.refuses(c.need, c.q.to("meta"), c.view) is None


def test_a_machine_without_a_compiler(monkeypatch):
    c = call().to(torch.float32)
    monkeypatch.setattr(flex.shutil, "which", lambda name: None)
    flex._cannot_compile.cache_clear()
    try:
        why = kernel_named("flex-compiled").refuses(c.need, c.q, c.view)
        assert why == "torch.compile needs a compiler (c++, g++, clang++) and this machine has none"
        assert kernel_named("flex").refuses(c.need, c.q, c.view) is None
        assert flex.cannot_compile("cuda") is not None
    finally:
        flex._cannot_compile.cache_clear()
    monkeypatch.setattr(flex.shutil, "which", lambda name: "/bin/c++" if name == "clang++" else None)
    try:
        assert flex.cannot_compile("cpu") is None
    finally:
        flex._cannot_compile.cache_clear()


def test_auto_says_once_what_it_fell_back_from(monkeypatch):
    c, choose = call().to(torch.float32), chooser("auto")
    capped = replace(c.need, softcap=1.0)
    monkeypatch.setattr(kernel_named("tiles"), "auto", lambda device: False)
    monkeypatch.setattr(kernel_named("flex-compiled"), "auto", lambda device: True)
    monkeypatch.setattr(flex.shutil, "which", lambda name: None)
    flex._cannot_compile.cache_clear()
    try:
        with pytest.warns(UserWarning, match="needs a compiler .* runs on a slower kernel"):
            assert choose(capped, c.q, c.view) is kernel_named("reference")
        assert choose(capped, c.q, c.view) is kernel_named("reference")  # a second warning would be an error here
    finally:
        flex._cannot_compile.cache_clear()


# ---- choosing


def test_every_kernel_has_its_name():
    assert list(KERNELS) == [
        "sdpa",
        "cudnn",
        "fused",
        "tiles",
        "chosen",
        "flex-compiled",
        "flex",
        "reference",
        "blocks",
        "blocks-of-2",
    ]
    assert all(kernel_named(name).name == name for name in KERNELS)


def test_what_runs_without_being_named():
    """Fastest first, and at last the reference, which never refuses; blocks run where one of these forms too much."""
    automatic = {device: [name for name in KERNELS if kernel_named(name).auto(device)] for device in ("cuda", "cpu")}
    assert automatic == {
        "cuda": ["sdpa", "cudnn", "fused", "chosen", "flex-compiled", "reference"],
        "cpu": ["sdpa", "tiles", "chosen", "reference"],
    }


def test_auto_takes_the_first_that_does_not_refuse():
    c, choose = call(), chooser("auto")
    assert choose(c.need, c.q, c.view) is kernel_named("sdpa")
    assert choose(replace(c.need, softcap=1.0), c.q, c.view) is kernel_named("reference")
    assert choose(replace(c.need, weights=True), c.q, c.view) is kernel_named("reference")


@torch.no_grad()
def test_choosing_does_not_break_a_compiled_graph():
    """Some kernels refuse here. What that asks of the machine, whether it has a compiler, must not be traced: in a
    training step a break in the first layer leaves the whole model uncompiled."""
    model = build(decoder(vocab=17, width=32, layers=2, heads=2, position="t5"))
    tokens = torch.randint(17, (1, TILES_FROM_QUERIES), generator=torch.Generator().manual_seed(0))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))
    torch._dynamo.reset()


def test_a_named_kernel_runs_or_says_why_not():
    c = call()
    assert chooser("flex")(c.need, c.q, c.view) is kernel_named("flex")
    with pytest.raises(Refused, match="'sdpa' was requested, but sdpa has no softcap; use kernel='auto'"):
        chooser("sdpa")(replace(c.need, softcap=1.0), c.q, c.view)


def test_a_kernel_of_ones_own():
    class Mine:
        name = "mine"

        def refuses(self, need, q, view):
            return "it is tired" if need.lse else None

        def __call__(self, q, view, pair, need):
            raise NotImplementedError

    c, mine = call(), Mine()
    assert chooser(mine)(c.need, c.q, c.view) is mine
    with pytest.raises(Refused, match="'mine' was requested, but it is tired"):
        chooser(mine)(replace(c.need, lse=True), c.q, c.view)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(BadInput, match=r"called 'spda'\. Did you mean 'sdpa'\? There are: auto, sdpa"):
        chooser("spda")
    with pytest.raises(BadInput, match="There are: auto"):
        chooser("???")


# ---- what sdpa is handed


@pytest.fixture
def handed(monkeypatch):
    """What reaches torch's function, and how often a mask is built."""
    from vantage.kernels import sdpa

    seen = []
    real = torch.nn.functional.scaled_dot_product_attention

    def spy(q, k, v, mask, **options):
        seen.append({"q": q, "mask": mask, **options})
        return real(q, k, v, mask, **options)

    monkeypatch.setattr(sdpa.F, "scaled_dot_product_attention", spy)
    return seen


def test_the_plain_causal_case_builds_no_mask(handed, monkeypatch):
    from tests.spec.helpers import CAUSAL, SAME_SEGMENT, both
    from vantage.kernels import sdpa

    monkeypatch.setattr(sdpa, "dense", lambda mask, pair: pytest.fail("a mask was built"))
    for start in (0, 7):
        c = call(2, 2, 2, 4, 4, meant=both(CAUSAL, SAME_SEGMENT), q_pos=Positions.arange(2, 4, start))
        c.view = c.view._replace(pos=Positions.arange(2, 4, start))
        c.run(kernel_named("sdpa"))
    two = Positions.arange(2, 2)
    call(2, 2, 2, 2, 2, meant=both(CAUSAL, SAME_SEGMENT), q_pos=two, k_pos=two).run(kernel_named("sdpa"))
    call(2, 2, 2, 1, 4, meant=both(CAUSAL, SAME_SEGMENT)).run(kernel_named("sdpa"))  # one query over its past
    assert [h["is_causal"] for h in handed] == [True, True, True, False]
    assert [h["mask"] for h in handed] == [None, None, None, None]


def test_elsewhere_the_mask_is_built(handed):
    from tests.spec.helpers import CAUSAL

    c = call(1, 1, 1, 3, 3, meant=CAUSAL, q_pos=Positions.arange(1, 3), k_pos=Positions.arange(1, 3, 1))
    c.run(kernel_named("sdpa"))
    biased = call(1, 1, 1, 3, 3, meant=CAUSAL, q_pos=Positions.arange(1, 3), k_pos=Positions.arange(1, 3))
    from vantage.spec.parts import Dense

    biased.run(kernel_named("sdpa"), bias=Dense(torch.zeros(1, 1, 3, 3)))
    assert [h["is_causal"] for h in handed] == [False, False]
    assert handed[0]["mask"].dtype == torch.bool
    assert handed[0]["mask"].tolist() == [[[[False, False, False], [True, False, False], [True, True, False]]]]
    assert handed[1]["mask"].isinf().sum() == 3


def test_one_query_folds_the_heads_that_share_a_key(handed):
    call(2, 2, 3, 1, 4).run(kernel_named("sdpa"))
    call(2, 2, 3, 2, 4).run(kernel_named("sdpa"))
    call(2, 2, 1, 1, 4).run(kernel_named("sdpa"))
    assert [tuple(h["q"].shape) for h in handed] == [(2, 2, 3, 4), (2, 6, 2, 4), (2, 2, 1, 4)]
    assert [h["enable_gqa"] for h in handed] == [False, True, False]


# ---- what flex is handed


def test_flex_builds_no_mask_where_everything_is_seen(monkeypatch):
    from tests.spec.helpers import CAUSAL

    made = []
    real = flex.create_block_mask
    monkeypatch.setattr(flex, "create_block_mask", lambda *a, **o: made.append(a[1]) or real(*a, **o))
    past = call(2, 1, 1, 1, 4, meant=CAUSAL)
    past.run(kernel_named("flex"))
    assert made == []
    square = call(2, 1, 1, 4, 4, meant=CAUSAL, q_pos=Positions.arange(2, 4), k_pos=Positions.arange(2, 4))
    square.run(kernel_named("flex"))
    square.run(kernel_named("flex"))
    assert made == [None]  # one for all rows, and once for both calls
    rows = Positions.rows([4, 3])
    ragged = call(2, 1, 1, 4, 4, meant=CAUSAL, q_pos=rows, k_pos=rows)
    ragged.run(kernel_named("flex"))
    assert made == [None, 2]


def test_flex_reads_runs_by_arithmetic():
    at = flex._reader(Positions.arange(2, 3, 5), 1)(torch.tensor(1), torch.tensor(2))
    assert (int(at.pos), int(at.order), at.segment) == (7, 7, None)
    packed = Positions.packed([[3], [2, 1]])
    at = flex._reader(packed, 2)(torch.tensor(1), torch.tensor(2))
    assert at.segment is not None
    assert (int(at.pos), int(at.order), int(at.segment)) == (0, 2, 2)
    same = Positions.rows([2, 2], width=3)
    assert int(flex._reader(same, 1)(torch.tensor(1), torch.tensor(2)).order) == -1


def test_flex_has_a_dense_bias_before_it_traces_anything():
    """torch 2.11's compiler stumbles over what some of them run, sorting by order for instance."""
    from vantage.kernels.flex import _score_mod
    from vantage.spec.masks import Causal
    from vantage.spec.parts import Dense, Need

    pos, values, asked = Positions.arange(1, 3), torch.arange(9.0).view(1, 1, 3, 3), []
    bias = Dense(lambda cut: asked.append(cut) or values[:, :, cut])
    score_mod = _score_mod(Need(Causal(), scale=1.0, bias=bias), pos.against(pos))
    assert len(asked) == 1
    places = [torch.tensor(n) for n in (0, 0, 1, 2)]
    assert score_mod(torch.tensor(0.5), *places) == 5.5
    assert len(asked) == 1
