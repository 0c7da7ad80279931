"""Models for the tests of ``vt.check``: sound ones, and one with a planted bug."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import vantage as vt
from vantage.conformance import Report
from vantage.conformance.rows import LAWS
from vantage.conformance.scenarios import sharpen
from vantage.spec.masks import Window
from vantage.spec.model import ModelSpec
from vantage.spec.positions import Positions

VOCAB = 50
NAMES = [law.name for law in LAWS]
CACHED = {"cached-steps", "cached-chunks", "padding-cached", "rollback", "fork"}
COUNTED = {"cached-counting"}  # asked of models that count positions themselves
INSIDE = {"positions-not-slots", "attention-formula"}  # asked of our own models alone
DOCUMENTS = {"packed"}  # a callable has no way to mark documents


def ours(**said: Any) -> vt.Model:
    return sharpen(vt.build(vt.decoder(**{"vocab": VOCAB, "width": 32, "layers": 2, "heads": 4, **said})))


def not_applicable(report: Report) -> set[str]:
    return {row.name for row in report.rows if row.status == "n/a"}


def failed(report: Report) -> set[str]:
    return {row.name for row in report.failures}


def with_windows(*windows: int) -> ModelSpec:
    spec = vt.decoder(vocab=VOCAB, width=32, layers=len(windows), heads=4)
    layers = tuple(replace(layer, mask=layer.mask & Window(n)) for layer, n in zip(spec.layers, windows, strict=True))
    return replace(spec, layers=layers)


def as_callable(model: vt.Model) -> Any:
    def run(tokens: Tensor, positions: Tensor, cache: Any) -> Tensor:
        return model(tokens, positions=positions, cache=cache)

    return run


class AtZero(nn.Module):
    """A rotation that forgets where it is once a cache holds something: its positions start at 0 again."""

    def __init__(self, right: nn.Module, sides: str):
        super().__init__()
        self.right, self.sides, self.stepping = right, sides, False

    def query(self, q: Tensor, pos: Positions) -> Tensor:
        return self.right.query(q, self.wrong(pos) if "query" in self.sides else pos)  # type: ignore[operator]

    def key(self, k: Tensor, pos: Positions) -> Tensor:
        return self.right.key(k, self.wrong(pos) if "key" in self.sides else pos)  # type: ignore[operator]

    def wrong(self, pos: Positions) -> Positions:
        anew = torch.arange(pos.shape[1]).expand(pos.shape)
        return Positions.of(anew, order=pos.order) if self.stepping else pos


def attentions(model: vt.Model) -> list[Any]:
    return [block.steps[0].sublayer for block in model.blocks]  # type: ignore[union-attr, index]


def forgetting_positions(sides: str, **said: Any) -> vt.Model:
    model = ours(**said)
    broken = AtZero(attentions(model)[0].qk[0], sides)
    for attention in attentions(model):
        attention.qk[0] = broken

    def notice(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        broken.stepping = named["cache"] is not None and any(named["cache"].tokens)

    model.register_forward_pre_hook(notice, with_kwargs=True)
    return model


class Net(nn.Module):
    """A small transformer that owes nothing to Vantage, with a cache that is a list of tensors."""

    def __init__(self, keep: int | None = None):
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(VOCAB, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.keep = keep  # tokens that a cache holds at most, besides those that arrive
        self.dropout = 0.0

    def new_cache(self, batch: int) -> list[Any]:
        return [None, None]

    def forward(self, tokens: Tensor, positions: Tensor, cache: list[Any] | None) -> Tensor:
        x = self.embed(tokens)
        for i, layer in enumerate(self.layers):
            q, k, v = layer(x).chunk(3, -1)
            held = (turned(k, positions), v, positions)
            if cache is not None:
                if cache[i] is not None:
                    old = tuple(t if self.keep is None else t[:, max(0, t.shape[1] - self.keep) :] for t in cache[i])
                    held = tuple(torch.cat(pair, 1) for pair in zip(old, held, strict=True))
                cache[i] = held
            seen = (held[2][:, None] <= positions[..., None]) & (held[2] >= 0)[:, None]
            scores = (turned(q, positions) @ held[0].transpose(1, 2)).masked_fill(~seen, -1e9)
            x = x + nn.functional.dropout(scores.softmax(-1) @ held[1], self.dropout)
        return x @ self.embed.weight.T


def turned(x: Tensor, positions: Tensor) -> Tensor:
    angle = positions[..., None] * 10.0 ** -torch.arange(8) / 2
    pair = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pair * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
