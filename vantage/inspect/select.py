"""What a user chose to look at: tokens, layers, heads, queries. What does not exist is refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.inspect.sites import KINDS, Site
from vantage.model import Model

Numbers = int | slice | Iterable[int] | None


def need_model(model: Any) -> None:
    if not isinstance(model, Model):
        raise BadInput(
            f"{type(model).__name__} is not a Vantage transformer, so it has no attention weights to show: "
            "give a model from vt.load or vt.build"
        )


def read_tokens(model: Model, text: Any, *, beyond: bool = False, cut: int | None = None) -> Tensor:
    """(B, T) from a text, a list of tokens or a tensor; images (B, C, H, W) for a model of images.

    A text longer than the model's context is refused, unless ``beyond`` and nothing in the model ends there.
    ``cut``: only the first so many tokens are read.
    """
    need_model(model)
    device = model.device
    if isinstance(text, str):
        if model.tokenizer is None:
            raise BadInput("this model has no tokenizer: give tokens instead of text")
        text = model.tokenizer.encode(text)
        if not text:
            raise BadInput("the text is empty: give at least one token")
    if not isinstance(text, Tensor):
        if not isinstance(text, Sequence) or not text or not all(type(n) is int for n in text):
            raise BadInput(f"{text!r:.80} is neither a text nor tokens: give a text, a list of tokens, or a tensor")
        text = torch.tensor([list(text)])
    tokens = text[None] if text.dim() == 1 else text
    if model.spec.embedding.source is None:
        if tokens.dim() != 2 or not tokens.numel() or tokens.is_floating_point():
            raise BadInput(
                f"a tensor of shape {tuple(text.shape)} and {text.dtype}: give tokens as whole numbers, of shape "
                "(tokens,) or (rows, tokens), at least one"
            )
        tokens = tokens[..., :cut]
        check_length(model, tokens.shape[-1], beyond=beyond)
    return tokens.to(device)


def read_source(model: Model, source: Any) -> Tensor | None:
    """What an encoder-decoder reads; ``None`` for any other model."""
    if model.encoder is None:
        if source is not None:
            raise BadInput("this model has no encoder: leave source out")
        return None
    if source is None:
        raise BadInput("this model reads a source: say source=, a text or tokens")
    if isinstance(source, str) and model.tokenizer is not None:
        source = model.tokenizer.encode(source)
    return read_tokens(model.encoder, source)


def check_length(model: Model, tokens: int, *, beyond: bool = False) -> None:
    """Refuse what is longer than the model's context."""
    hard, soft = model.max_positions, model.context_length
    if hard is not None and tokens > hard:
        raise BadInput(f"{tokens:,} tokens, and this model has {hard:,} positions: cut the text to {hard:,} tokens")
    if soft is not None and tokens > soft and not beyond:
        raise BadInput(
            f"{tokens:,} tokens, and this model's context is {soft:,}: cut the text to {soft:,} tokens, "
            "or look past it with beyond=True (--beyond)"
        )


def choose_sites(sites: Sequence[Site], kinds: Iterable[str] | str | None, layers: Numbers) -> list[Site]:
    """The sites of these kinds in these layers."""
    kinds_here = [kind for kind in KINDS if any(site.kind == kind for site in sites)]
    wanted_kinds = kinds_here if kinds is None else [kinds] if isinstance(kinds, str) else kinds
    wanted_kinds = list(wanted_kinds) if isinstance(wanted_kinds, Iterable) else []
    if not wanted_kinds:
        raise BadInput(f"kinds={kinds!r}: give at least one of {', '.join(kinds_here)}, or None for all")
    for kind in wanted_kinds:
        if kind not in kinds_here:
            raise BadInput(f"this model has no {kind!r} attention: it has {', '.join(kinds_here)}")
    chosen: list[Site] = []
    for kind in wanted_kinds:
        of_kind = [site for site in sites if site.kind == kind]
        count = 1 + max(site.layer for site in of_kind)
        keep = set(numbers(layers, count, "layer", f" of {kind} attention" if len(kinds_here) > 1 else ""))
        chosen += [site for site in of_kind if site.layer in keep]
    return [site for site in sites if site in chosen]


def numbers(chosen: Numbers, count: int, what: str, where: str = "") -> list[int]:
    """Which of ``count`` things: all, one, a slice or several; negative numbers count from the end."""
    if chosen is None:
        return list(range(count))
    several = _several(chosen, count, what)
    for n in several:
        if type(n) is not int or not -count <= n < count:
            raise BadInput(f"there is no {what} {n!r}{where}: there are {count}, 0 to {count - 1}")
    if not several:
        raise BadInput(f"no {what} was chosen{where}: give at least one of 0 to {count - 1}, or None for all")
    return list(dict.fromkeys(n % count for n in several))


def _several(chosen: Any, count: int, what: str) -> list[Any]:
    if isinstance(chosen, slice):
        try:
            return list(range(count)[chosen])
        except (TypeError, ValueError) as e:
            raise BadInput(f"{what} {chosen!r}: {e}") from None
    if isinstance(chosen, Tensor):
        chosen = chosen.tolist()
    if isinstance(chosen, int):
        return [chosen]
    if not isinstance(chosen, Iterable):
        raise BadInput(f"{what} {chosen!r}: give a whole number, several, a slice, or None for all")
    return list(chosen)


def labels(model: Model, tokens_T: Sequence[int]) -> list[str]:
    """Each token as a reader would write it."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return [str(n) for n in tokens_T]
    return [tokenizer.label(n) or f"[{n}]" for n in tokens_T]
