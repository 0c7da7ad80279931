"""Which source word a translation looked at: cross-attention as an alignment, and how far it is from one by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import torch
from torch import Tensor

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput
from vantage.model import Model
from vantage.spec.parts import Attended, Need, View
from vantage.training.text.rows import padded
from vantage.training.text.vocabulary import pad_token
from vantage.training.translate.decode import tokenizer_of
from vantage.training.translate.pairs import Pair, ends, sources_of
from vantage.training.translate.words import word_of_each, words

Link = tuple[int, int]  # source word, target word, from 0
When = Literal["read", "written"]


@final
@dataclass(frozen=True, eq=False)
class Alignment:
    """How much each target word looked at each source word. A row and its ``end`` add up to 1."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Tensor  # (target words, source words)
    end: Tensor  # (target words,): what went to the end token of the source

    def links(self) -> frozenset[Link]:
        """Each target word with the source word it looked at most."""
        if not self.source:
            return frozenset()
        return frozenset((int(s), t) for t, s in enumerate(self.weights.argmax(1)))

    def __str__(self) -> str:
        """The matrix as text, a row for each target word."""
        wide = max(map(len, self.target), default=0)
        columns = [max(4, len(word)) for word in self.source]
        head = " " * wide + "".join(f"  {word:>{n}}" for word, n in zip(self.source, columns, strict=True))
        rows = [
            f"{word:<{wide}}" + "".join(f"  {float(w):>{n}.2f}" for w, n in zip(row, columns, strict=True))
            for word, row in zip(self.target, self.weights, strict=True)
        ]
        return "\n".join([head, *rows])


@final
@dataclass(frozen=True)
class Gold:
    """An alignment by hand. Sure links are possible as well."""

    source: int  # words
    target: int
    sure: frozenset[Link]
    possible: frozenset[Link] = frozenset()


def align(
    model: Model,
    pairs: Sequence[Pair],
    *,
    tokenizer: Tokenizer | None = None,
    layers: int | Iterable[int] | None = None,
    when: When = "written",
    batch: int = 64,
) -> list[Alignment]:
    """The model's alignment of each pair: its cross-attention weights, averaged over heads and ``layers`` (none: all).

    A source word has the sum of its pieces' weights, a target word the mean of its pieces'. ``when="written"`` takes
    the step that predicts a piece: a model looks where it is going to translate. ``"read"`` takes the next one, which
    has the piece as its input; some layers of deep models look there where it came from (Chen et al. 2020, "Accurate
    word alignment induction").
    """
    tokenizer = tokenizer_of(model, tokenizer)
    if model.encoder is None:
        raise BadInput("this model has no encoder, so nothing is aligned: give an encoder-decoder")
    if when not in ("read", "written"):
        raise BadInput(f"when={when!r}: give 'read' or 'written'")
    across = [i for i, layer in enumerate(model.spec.layers) if layer.cross is not None]
    chosen = across if layers is None else [layers] if isinstance(layers, int) else list(layers)
    if not chosen or set(chosen) - set(across):
        raise BadInput(f"layers={layers}: cross-attention is in the layers {across}")
    alignments: list[Alignment] = []
    training = model.training
    model.eval()
    try:
        for low in range(0, len(pairs), batch):
            alignments += _align(model, tokenizer, pairs[low : low + batch], set(chosen), when)
    finally:
        model.train(training)
    return alignments


@torch.inference_mode()
def _align(model: Model, tokenizer: Tokenizer, pairs: Sequence[Pair], layers: set[int], when: When) -> list[Alignment]:
    bos, _ = ends(tokenizer)
    device = model.device
    xs, ys = ([word_of_each(tokenizer, pair[side]) for pair in pairs] for side in (0, 1))
    source, mask = sources_of([ids for ids, _ in xs], tokenizer)
    tokens = padded([[bos, *ids] for ids, _ in ys], pad_token(tokenizer)).to(device)
    memory = model.encode(source.to(device), mask=None if mask is None else mask.to(device))
    seen: list[Tensor] = []

    def watch(site: str, index: int, view: View, need: Need, attended: Attended) -> None:
        if site == "cross" and index in layers:
            assert attended.weights is not None  # asked for because somebody watches
            seen.append(attended.weights.float().mean(1))

    model.hidden(tokens, source=memory, watch=watch)
    weights_BTS = torch.stack(seen).mean(0).cpu()
    first = 1 if when == "read" else 0
    return [
        _by_words(row[first : first + len(y)], x, y, pair)
        for row, (_, x), (_, y), pair in zip(weights_BTS, xs, ys, pairs, strict=True)
    ]


def _by_words(weights_TS: Tensor, x: Sequence[int], y: Sequence[int], pair: Pair) -> Alignment:
    """Pieces put together: ``x`` and ``y`` say which word each belongs to; after the source's comes its end token."""
    source, target = words(pair[0]), words(pair[1])
    end = weights_TS.new_zeros(len(target))
    merged = weights_TS.new_zeros(len(target), len(source))
    for t in range(len(target)):
        mine = [i for i, word in enumerate(y) if word == t]
        if not mine:
            raise BadInput(
                f"the vocabulary makes nothing of {target[t]!r} in {pair[1]!r}: use another, or leave it out"
            )
        mean = weights_TS[mine].mean(0)
        merged[t].index_add_(0, torch.tensor(x, dtype=torch.long), mean[: len(x)])
        end[t] = mean[len(x)]
    return Alignment(tuple(source), tuple(target), merged, end)


def alignment_error_rate(alignments: Sequence[Iterable[Link]], gold: Sequence[Gold]) -> float:
    """1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|) over all pairs together (Och and Ney 2003): 0 is perfect."""
    if len(alignments) != len(gold):
        raise BadInput(f"{len(alignments)} alignments and {len(gold)} by hand: give one for each")
    hits = total = 0
    for links, right in zip(map(frozenset, alignments), gold, strict=True):
        hits += len(links & right.sure) + len(links & (right.sure | right.possible))
        total += len(links) + len(right.sure)
    if not total:
        raise BadInput("no alignment has a link: there is nothing to compare")
    return 1 - hits / total


def read_gold(path: str | Path) -> dict[int, Gold]:
    """Alignments by hand, by the number of the line (from 0) that they belong to.

    A JSON file: {"pairs": [{"line": 1, "source": 10, "target": 9, "sure": [[0, 0], …], "possible": […]}, …]}, lines
    counted from 1, ``source`` and ``target`` the numbers of words, links from 0.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return {one["line"] - 1: _gold(one) for one in content["pairs"]}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise BadInput(f"{path} holds no alignments: {e!r}") from e


def _gold(one: Mapping[str, object]) -> Gold:
    sure, possible = (frozenset((int(s), int(t)) for s, t in one.get(k, [])) for k in ("sure", "possible"))  # pyright: ignore[reportGeneralTypeIssues] (bad values are caught by the caller)
    gold = Gold(int(str(one["source"])), int(str(one["target"])), sure, possible)
    if any(not (0 <= s < gold.source and 0 <= t < gold.target) for s, t in sure | possible):
        raise ValueError(f"line {one['line']} has a link to a word that is not there")
    return gold
