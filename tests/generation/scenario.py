"""Requests alone and requests together: what must be the same, and how it is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tests.generation import zoo
from vantage.generation import Engine, Request, Sampling
from vantage.model import Model

CLOSE = 1e-4  # log-probabilities; and two tokens closer than this may change places


@dataclass(frozen=True)
class Ask:
    """A request as data."""

    tokens: tuple[int, ...]
    max_tokens: int = 8
    sampling: Sampling = Sampling(logprobs=2)
    priority: int = 0
    tenant: str | None = None
    source: tuple[int, ...] | None = None
    n: int = 1

    def to(self, engine: Engine) -> Request:
        return engine.submit(**vars(self))


def asks(vocab: int, *, source: bool = False, count: int = 5, lengths=(3, 17, 9, 26, 12)) -> list[Ask]:
    """Prompts of mixed lengths, two of which begin alike; greedy and sampled; one is more urgent."""
    draw = torch.Generator().manual_seed(7)

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, vocab, (n,), generator=draw).tolist())

    made = [tokens(n) for n in lengths[:count]]
    made[-1] = made[1][:8] + made[-1][8:]
    return [
        Ask(
            prompt,
            max_tokens=9 + i,
            priority=int(i == 3),
            sampling=Sampling(temperature=0.8 * (i % 2), seed=i, logprobs=2),
            source=tokens(4 + 3 * i) if source else None,
        )
        for i, prompt in enumerate(made)
    ]


def alone(model: Any, ask: Ask, **options: Any) -> Request:
    engine = Engine(model, **options)
    request = ask.to(engine)
    engine.run()
    return request


def together(
    model: Any, wanted: list[Ask], *, cancel: Ask | None = None, **options: Any
) -> tuple[Engine, list[Request]]:
    """One arrives after another, a few steps apart; one more is cancelled in the middle."""
    engine = Engine(model, **options)
    requests, extra = [], None if cancel is None else cancel.to(engine)
    for i, ask in enumerate(wanted):
        requests.append(ask.to(engine))
        for _ in range(i % 3):
            engine.step()
        if extra is not None and i == 2:
            engine.cancel(extra)
    engine.run()
    return engine, requests


def same(got: Request, wanted: Request, close: float = CLOSE) -> None:
    """The same tokens and log-probabilities. Where the best two are too close to call, what follows may differ."""
    assert got.error is None, got.error
    for mine, other in zip(got.outputs, wanted.outputs, strict=True):
        for a, b in zip(mine.picks, other.picks, strict=False):
            assert abs(a.top[0][1] - b.top[0][1]) < close
            if a.token != b.token:
                assert got.sampling.greedy, "a drawn token differs: the margin of a draw is not known here"
                assert abs(a.top[0][1] - a.top[1][1]) < close
                break
            assert abs(a.logprob - b.logprob) < close
        else:
            assert mine.finish == other.finish
            assert len(mine.picks) == len(other.picks)


def bits(got: Request, wanted: Request) -> None:
    """Not a bit apart."""
    assert got.error is None, got.error
    for mine, other in zip(got.outputs, wanted.outputs, strict=True):
        assert mine.picks == other.picks
        assert mine.finish == other.finish


def emptied(engine: Engine) -> None:
    """Nothing is held once the prefixes are forgotten: every block came back."""
    engine.forget()
    stats = engine.stats
    assert stats.blocks_used == 0
    assert stats.prefixes == 0
    assert stats.bytes_held == 0


def counted(engine: Engine, requests: list[Request]) -> None:
    """Every key that was projected is told of: of a prompt, of a token that was generated, or again.

    Without shared prefixes: then no request reads what another has computed.
    """
    stats = engine.stats
    told = sum(max(0, len(output.picks) - 1) for request in requests for output in request.outputs)
    assert set(stats.projections) == {stats.prefilled + stats.recomputed + told}
    assert stats.recomputed == sum(request.recomputed for request in requests)
    assert stats.generated == sum(len(output.picks) for request in requests for output in request.outputs)


def own(kind: str, **options: Any) -> Model:
    """A model of the zoo that a test may change: the others are shared."""
    return zoo.model.__wrapped__(kind, **options)
