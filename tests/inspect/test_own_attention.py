"""An attention that is none of ours: what it says of itself is all that looking inside needs, and what it leaves out is
said by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import vantage as vt
from vantage.errors import Refused
from vantage.inspect import atlas, cost, decompose, distinguishable
from vantage.inspect.sites import sites_of
from vantage.model import Model
from vantage.model.lora import Lora, adapted, add_lora
from vantage.model.maps import linear_maps, parameter_kinds
from vantage.spec.attention import Pieces, PositionParts, QueriesAndKeys
from vantage.spec.masks import Mask
from vantage.spec.model import BuildContext, CacheShape, ModelSpec
from vantage.spec.operations import AttentionWork, linear_operations
from vantage.spec.parts import BiasInputs, Context, Need, Shape
from vantage.spec.positions import Place, Positions
from vantage.spec.transforms import chain

WIDTH, HEADS, DIM = 32, 4, 8


@dataclass(frozen=True)
class Shared:
    """Queries of every head; keys and values are one and the same, for all heads."""

    says: bool = True  # whether it says anything of itself besides what it must

    def shape(self, width: int) -> Shape:
        return Shape(width, HEADS, 1, DIM, DIM, DIM)

    def cache_shape(self, width: int) -> CacheShape:
        return CacheShape(1, DIM, DIM)

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return (SharedAttention if self.says else Silent)(self.shape(width), context)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("self-attention only")


class Silent(nn.Module):
    crosses = False

    def __init__(self, shape: Shape, context: BuildContext):
        super().__init__()
        self.shape, self.index, self.mask = shape, context.index, context.mask
        self.mixed = context.linear(shape.width, (HEADS + 1) * DIM, False)
        self.back = context.linear(HEADS * DIM, shape.width, False)
        self.turns = nn.ModuleList(context.qk)  # pyright: ignore[reportArgumentType] (every transform is a module)
        self.added, self.after = context.bias, context.value_bias

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k = self.mixed(x).split((HEADS * DIM, DIM), -1)
        return q.unflatten(-1, (HEADS, DIM)).transpose(1, 2), k[:, None]

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        raw, k = self.project(x)
        q = chain(self.turns, "query", raw, ctx.pos)
        view = ctx.caches[self.index].append(ctx.pos, chain(self.turns, "key", k, ctx.pos), k)
        scale = DIM**-0.5
        bias = self.added.at(BiasInputs(raw, q, view.k, ctx.pos, view.pos, scale))
        need = Need(self.mask, scale, bias=bias, value_bias=self.after)
        return self.back(ctx.attend("self", self.index, q, view, need).transpose(1, 2).flatten(2))


class SharedAttention(Silent):
    biased = False

    def projections(self) -> dict[str, Pieces]:
        return {"mixed": (("q", HEADS * DIM), ("k", DIM))}

    def position_parts(self) -> PositionParts:
        return PositionParts(list(self.turns), self.added, self.after)  # pyright: ignore[reportArgumentType]

    def queries_and_keys(self, x_BTD: Tensor) -> QueriesAndKeys:
        return QueriesAndKeys(*self.project(x_BTD))

    def score_width(self, queries: int, keys: int) -> int:
        return DIM

    def operations(self, work: AttentionWork) -> dict[str, int]:
        return work.core(DIM) | {
            "projections": linear_operations(self.mixed, work.size.tokens),
            "output": linear_operations(self.back, work.size.tokens),
        }


def spec(position: str = "rope", *, says: bool = True) -> ModelSpec:
    return vt.decoder(vocab=19, width=WIDTH, layers=2, attention=Shared(says), position=position, max_length=64)


def build(position: str = "rope", *, says: bool = True) -> Model:
    made = vt.build(spec(position, says=says)).double().eval()
    made.kernel = "reference"
    return made


TOKENS = torch.randint(0, 19, (1, 11), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("says", [True, False])
def test_it_is_found_and_its_weights_are_those_it_used(says: bool) -> None:
    made = build(says=says)
    capture = vt.capture(made, TOKENS, verify=True)
    assert capture.sites == [("self", 0), ("self", 1)]
    assert capture.error is not None
    assert capture.error < 1e-12
    assert len(atlas(made, TOKENS).heads) == 2 * HEADS
    assert made.summary()


def test_what_torch_compile_wraps_around_it_is_not_a_second_one() -> None:
    made = build()
    step = made.blocks[0].get_submodule("steps.0")
    step.register_module("sublayer", torch.compile(step.get_submodule("sublayer")))  # pyright: ignore[reportArgumentType] (a module)
    assert [type(site.module) for site in sites_of(made)] == [SharedAttention, SharedAttention]


def test_its_operations_are_those_that_torch_counts() -> None:
    made = build()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        made(TOKENS)
    predicted = cost(made, context=TOKENS.shape[1])
    assert predicted.passes[0].operations == counter.get_total_flops()
    assert predicted.uncounted == ()
    assert predicted.parameters["attention"] == 2 * (WIDTH * (HEADS + 1) * DIM + HEADS * DIM * WIDTH)
    silent = cost(build(says=False), context=TOKENS.shape[1])
    assert silent.uncounted == ("Silent",)
    assert silent.passes[0].operations < predicted.passes[0].operations
    assert silent.parameters == predicted.parameters


@pytest.mark.parametrize("position", ["rope", "alibi", "none"])
def test_its_scores_are_split(position: str) -> None:
    made = build(position)
    parts = decompose(made, TOKENS, layer=1)
    whole = torch.stack([term.value for term in parts.terms]).sum(0)
    torch.testing.assert_close(whole[parts.seen], parts.score[parts.seen])
    assert parts.terms[0].name == "content"
    assert len(parts.terms) == (1 if position == "none" else 2)
    assert distinguishable(made, TOKENS, layer=0, upto=16, pairs=2).swing.shape == (HEADS, 16)


@pytest.mark.parametrize("position", ["alibi", "none", vt.Rope(base=500.0)])
def test_its_encoding_is_exchanged_and_its_weights_are_shared(position: object) -> None:
    made = build()
    new = vt.swap(made, position=position, window=5)  # pyright: ignore[reportArgumentType]
    wanted = vt.build(new.spec).double().eval()
    wanted.load_state_dict(made.state_dict(), strict=False)
    torch.testing.assert_close(new(TOKENS), wanted(TOKENS))
    assert {id(p) for p in new.parameters()} == {id(p) for p in made.parameters()}
    assert not torch.allclose(new(TOKENS), made(TOKENS))


def test_its_maps_have_names() -> None:
    made = vt.build(replace(spec("fire"), layers=spec("fire").layers[:1]))
    maps = {m.name: (m.role, m.pieces) for m in linear_maps(made)}
    own = "blocks.0.steps.0.sublayer"
    assert maps[f"{own}.mixed"] == ("attention", (("q", HEADS * DIM), ("k", DIM)))
    assert maps[f"{own}.back"] == ("attention", ())
    kinds = parameter_kinds(made)
    assert kinds[f"{own}.mixed.weight"] == "matrix"
    assert "position" in {kind for name, kind in kinds.items() if name.startswith(f"{own}.added.")}
    add_lora(made, Lora(2, targets=("attention",)))
    assert set(adapted(made)) == {f"{own}.mixed", f"{own}.back"}


@pytest.mark.parametrize(
    ("look", "says"),
    [
        (lambda made: vt.swap(made, position="alibi"), "Silent cannot have its encoding exchanged.*position_parts"),
        (lambda made: decompose(made, TOKENS, layer=0), "Silent cannot show what position adds.*position_parts"),
    ],
)
def test_what_it_does_not_say_is_named(look: object, says: str) -> None:
    assert callable(look)
    with pytest.raises(Refused, match=says):
        look(build(says=False))


def test_it_runs_where_only_a_native_form_is_missing() -> None:
    made = build().float()
    made.kernel = "native"
    with torch.inference_mode(), pytest.raises(Refused, match="SharedAttention has no native form"):
        made(TOKENS, cache=made.new_cache(capacity=16))


class Striped(Mask):
    """Every second key; it says nothing of where that changes."""

    def __call__(self, q: Place, k: Place) -> Tensor:
        return (k.order % 2 == 0) & (k.order <= q.order)

    def simplified(self, q: Positions, k: Positions) -> Mask:
        return self

    def reach(self) -> int | None:
        return None

    def settled(self, start: int) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


def test_a_mask_that_does_not_say_where_it_changes_is_asked_about_every_key() -> None:
    own = replace(spec().layers[0], mask=Striped())
    predicted = cost(replace(spec(), layers=(own,)), context=8)
    seen = sum(len(range(0, i + 1, 2)) for i in range(8))
    assert predicted.passes[0].visible == seen / 64
