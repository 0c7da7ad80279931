"""A small model with an attention, and what must hold of it: cached as in one pass, counted as torch counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

import vantage as vt
from vantage.conformance.scenarios import sharpen
from vantage.inspect import cost
from vantage.spec.model import AttentionConfig, ModelSpec

VOCAB = 19
TOKENS = torch.randint(VOCAB, (2, 23), generator=torch.Generator().manual_seed(0))


def small_model(config: AttentionConfig, **other) -> vt.Model:
    options = {"vocab": VOCAB, "width": 32, "layers": 2, "attention": config, "max_length": 64, **other}
    return sharpen(vt.build(vt.decoder(**options)).double())


@torch.no_grad()
def check_cached(m: vt.Model, kind: str, pieces: Sequence[int] = (4, 7, *(1,) * 12)) -> None:
    """TOKENS in these pieces through a cache are as in one pass."""
    cache = m.new_cache(2, kind=kind)
    got = [m(part, cache=cache) for part in TOKENS.split(pieces, 1)]
    torch.testing.assert_close(torch.cat(got, 1), m(TOKENS), rtol=0, atol=1e-9)


@torch.no_grad()
def check_taken_back(m: vt.Model, kind: str, ends: Iterable[int]) -> None:
    """A draft of 8 tokens behind 5 is wrong, and then one of 2 behind so many: both are taken back."""
    whole = m(TOKENS)
    for kept in ends:
        cache = m.new_cache(2, kind=kind, draft=8)
        m(TOKENS[:, :5], cache=cache)
        m((TOKENS[:, 5:13] + 1) % VOCAB, cache=cache)
        cache.crop(5)
        got = [m(TOKENS[:, 5:kept], cache=cache)] if kept > 5 else []
        m((TOKENS[:, kept : kept + 2] + 3) % VOCAB, cache=cache)
        cache.crop(kept)
        got.append(m(TOKENS[:, kept:], cache=cache))
        torch.testing.assert_close(torch.cat(got, 1), whole[:, 5:], rtol=0, atol=1e-10)


@torch.no_grad()
def check_generated(m: vt.Model) -> None:
    """The engine's tokens, of rows that begin at different places, are those of one pass over each."""
    prompts = [TOKENS[0, :9].tolist(), TOKENS[1, :4].tolist()]
    for prompt, output in zip(prompts, vt.generate(m, prompts, max_tokens=12, temperature=0.0), strict=True):
        tokens = torch.tensor([[*prompt, *output.tokens]])
        assert m(tokens)[0, len(prompt) - 1 : -1].argmax(-1).tolist() == list(output.tokens)


@torch.no_grad()
def check_costs(spec: ModelSpec) -> None:
    """What is predicted of a prompt of 17 tokens and of the step after 16 is what torch counts."""
    m = vt.build(spec, kernel="reference")
    prefill, decode = cost(spec, context=17).passes
    with FlopCounterMode(display=False) as counter:
        m(torch.zeros(1, 17, dtype=torch.long))
    assert counter.get_total_flops() == prefill.operations
    cache = m.new_cache(1, capacity=17)
    m(torch.zeros(1, 16, dtype=torch.long), cache=cache)
    with FlopCounterMode(display=False) as counter:
        m(torch.zeros(1, 1, dtype=torch.long), cache=cache)
    assert counter.get_total_flops() == decode.operations


@torch.no_grad()
def check_saved(m: vt.Model, folder: Path) -> vt.Model:
    """A folder gives back the same spec and the same numbers."""
    vt.save(m, folder)
    again = vt.load(folder, dtype=torch.float64)
    assert again.spec == m.spec
    torch.testing.assert_close(again(TOKENS), m(TOKENS))
    return again


def check_gradients(m: vt.Model, *parts: str, count: int) -> None:
    """Of logits by the parameters with one of these in their names, of which there are so many."""
    names = {name: p for name, p in m.named_parameters() if any(part in name for part in parts)}
    checked = {name: p.detach().clone().requires_grad_() for name, p in names.items()}
    assert len(checked) == count

    def logits(*given: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(m, dict(zip(checked, given, strict=True)), (TOKENS[:, :6],))[..., 0]

    assert torch.autograd.gradcheck(logits, tuple(checked.values()))
