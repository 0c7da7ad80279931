"""One engine over several processes against the same engine in one: the same arrivals, drawn at random."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.generation import zoo
from tests.generation.folder import chat_model
from tests.generation.vision_chat import image_token, pixels, vision_chat_model
from tests.parallel.expert_cells import with_experts
from vantage.conformance.scenarios import sharpen
from vantage.generation import Engine, Request, Sampling, Stop
from vantage.generation.constrain import regex
from vantage.generation.peers import FirstProcess, FollowingProcess, follow_engine
from vantage.model import Model, build
from vantage.parallel import TensorParallel
from vantage.parallel.control import ControlChannel

TIGHT: dict[str, Any] = {"block": 4, "chunk": 8, "capacity": 72, "rows": 4}  # too little for all: some are put back
ROOMY: dict[str, Any] = {"block": 4, "chunk": 8, "rows": 8}
COUNTED = (
    "prefilled",
    "reused",
    "generated",
    "recomputed",
    "preemptions",
    "evictions",
    "steps",
    "calls",
    "blocks_used",
)


class Broken(Exception):
    """What goes wrong."""


class Trap:
    """A constraint that fails at its third token."""

    def __init__(self) -> None:
        self.taken = 0

    def allow(self, logits_V: torch.Tensor) -> None:
        if self.taken == 2:
            raise Broken("trapped")

    def take(self, token: int) -> None:
        self.taken += 1

    def done(self) -> bool:
        return False


@dataclass
class Scenario:
    """What happens to an engine, from one seed. The same for every engine of the same vocabulary."""

    model: Model
    seed: int
    asks: int = 12
    requests: list[Request] = field(default_factory=list)

    def run(self, engine: Engine) -> list[Any]:
        """What everybody could see of it."""
        draw = random.Random(self.seed)
        trunk = [draw.randrange(3, self.model.spec.vocab) for _ in range(24)]
        events = []
        for number in range(self.asks):
            self.requests.append(self._submit(engine, draw, number, trunk))
            for _ in range(draw.randrange(4)):
                events += engine.step()
            if draw.random() < 0.25:
                engine.cancel(draw.choice(self.requests))
            if number == self.asks // 2:
                engine.forget()
        events += engine.run()
        return [(e.request.id, e.sample, e.text, e.finish, e.ended_by) for e in events]

    def _submit(self, engine: Engine, draw: random.Random, number: int, trunk: list[int]) -> Request:
        vocab, tokenizer = self.model.spec.vocab, self.model.tokenizer
        tail = [draw.randrange(3, vocab) for _ in range(draw.randrange(1, 12))]
        options: dict[str, Any] = {
            "max_tokens": draw.randrange(1, 14),
            "priority": draw.randrange(2),
            "tenant": draw.choice([None, "a"]),
            "n": draw.choice([1, 1, 1, 2]),
            "sampling": Sampling(
                temperature=draw.choice([0.0, 0.9]),
                top_p=draw.choice([None, 0.9]),
                repetition_penalty=draw.choice([1.0, 1.3]),
                frequency_penalty=draw.choice([0.0, 0.4]),
                seed=number,
                logprobs=draw.choice([None, 2]),
            ),
        }
        if tokenizer is not None:
            options["stop"] = Stop(("e", "0"), frozenset({2})) if draw.random() < 0.3 else Stop()
            if draw.random() < 0.3:
                options["constraint"] = regex("[a-f]{2,6}", tokenizer, ends=(2,))
        if draw.random() < 0.15:
            options |= {"constraint": Trap(), "n": 1, "max_tokens": 8}
        if draw.random() < 0.2 and self.model.encoder is None:
            options["prompt_logprobs"] = 1
        if self.model.encoder is not None:
            options["source"] = [draw.randrange(3, vocab) for _ in range(draw.randrange(2, 8))]
        return engine.submit([*trunk[: draw.randrange(1, 24)], *tail], **options)

    def answers(self) -> list[Any]:
        return [
            (
                [(output.tokens, output.text, output.finish) for output in request.outputs],
                request.state,
                type(request.error).__name__,
                request.preemptions,
                request.recomputed,
                request.prefix,
            )
            for request in self.requests
        ]

    def logprobs(self) -> list[float]:
        picks = [p for r in self.requests for o in r.outputs for p in o.picks]
        picks += [p for r in self.requests for p in r.prompt_picks if p is not None]
        return [value for p in picks for value in (p.logprob, *(v for _, v in p.top))]


def model_of(kind: str, dtype: torch.dtype) -> Model:
    named = {
        "chat": chat_model,
        "vision": vision_chat_model,
        "experts": lambda: sharpen(build(with_experts("grouped"))),
    }
    whole = named.get(kind, lambda: zoo.model(kind))()
    whole.kernel = "reference"
    return whole.to(dtype).eval()


def gaps(
    kind: str, dtype: torch.dtype, seeds: list[int], options: dict[str, Any], whole_experts: bool = False
) -> dict[str, Any]:
    """Where answers, events or counters of a group differ from one process, and how far log-probabilities are off.

    All processes call it; those that follow tell what they counted.
    """
    whole = model_of(kind, dtype)
    share = TensorParallel(whole.spec, whole_experts=whole_experts).cut(whole)
    found: dict[str, Any] = {"wrong": [], "gap": 0.0, "counted": [], "preemptions": 0, "reused": 0, "failed": 0}
    channel = ControlChannel()
    for seed in seeds:
        if not channel.first:
            engine = Engine(share, peers=FollowingProcess(channel), **options)
            follow_engine(engine, channel)
        else:
            alone, group = Scenario(whole, seed), Scenario(share, seed)
            wanted = alone.run(Engine(whole, **options))
            engine = Engine(share, peers=FirstProcess(channel), **options)
            got = group.run(engine)
            if got != wanted:
                found["wrong"].append((seed, "events"))
            pairs = zip(group.answers(), alone.answers(), strict=True)
            found["wrong"] += [(seed, i, a, b) for i, (a, b) in enumerate(pairs) if a != b]
            values = zip(group.logprobs(), alone.logprobs(), strict=False)
            found["gap"] = max([found["gap"], *(abs(a - b) for a, b in values)])
            found["failed"] += sum(request.error is not None for request in group.requests)
            engine.close()
        stats = engine.stats
        found["counted"].append({name: getattr(stats, name) for name in COUNTED})
        found["preemptions"] += stats.preemptions
        found["reused"] += stats.reused
    return found


def pictures(seed: int) -> dict[str, Any]:
    """The same picture in two prompts and another one in a third, decoded together."""
    whole = model_of("vision", torch.float64)
    share = TensorParallel(whole.spec).cut(whole)
    channel = ControlChannel()
    if not channel.first:
        follow_engine(Engine(share, peers=FollowingProcess(channel), block=4, chunk=8), channel)
        return {}
    processor = whole.image_processor
    assert processor is not None
    prepared = [processor(pixels(seed=seed + i)) for i in range(2)]
    merge = whole.spec.vision.merge  # pyright: ignore[reportOptionalMemberAccess]

    def run(engine: Engine) -> list[list[int]]:
        requests = []
        for i in (0, 0, 1):
            places = [image_token(whole)] * prepared[i].tokens(merge)
            requests.append(engine.submit([5, 6, *places, 7, 8], max_tokens=6, images=[prepared[i]]))
            engine.step()
        engine.run()
        return [request.outputs[0].tokens for request in requests]

    wanted = run(Engine(whole, block=4, chunk=8))
    engine = Engine(share, peers=FirstProcess(channel), block=4, chunk=8)
    got = run(engine)
    engine.close()
    return {"wanted": wanted, "got": got}


def fails(where: int) -> str:
    """A pass that fails in one process. It raises there; the others are in the middle of theirs."""
    whole = model_of("chat", torch.float64)
    share = TensorParallel(whole.spec).cut(whole)
    channel = ControlChannel()

    def fault(module: Any, args: Any) -> None:
        if args[0].shape[1] == 1:
            raise Broken("the roof fell in")

    if channel.rank == where:
        share.blocks[0].register_forward_pre_hook(fault)
    if channel.first:
        engine = Engine(share, peers=FirstProcess(channel), **ROOMY)
        request = engine.submit([5, 6, 7], max_tokens=5)
        engine.run()
        return request.state
    follow_engine(Engine(share, peers=FollowingProcess(channel), **ROOMY), channel)
    return "closed"


def told(messages: list[Any]) -> tuple[list[Any], list[int], int]:
    """What was heard of these, numbers after them, and the bytes that this process sent."""
    channel = ControlChannel()
    heard = list(messages)
    for i, message in enumerate(messages):
        if channel.first:
            channel.tell(message)
        else:
            heard[i] = channel.hear()
    numbers = channel.numbers(torch.tensor([[7, 1]]) if channel.first else torch.empty(1, 2, dtype=torch.int64))
    return heard, numbers.flatten().tolist(), channel.wire.bytes["control"]
