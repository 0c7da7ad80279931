"""A capture answers for one sequence: passes of several are told apart, and so are the rows of a batch."""

from __future__ import annotations

import pytest
import torch
from matplotlib.figure import Figure

import vantage as vt
from tests.generation.folder import chat_model
from tests.inspect.models import model, source, tokens
from vantage.errors import BadInput, Refused
from vantage.inspect import Capture, capturing, decompose, distinguishable, plot_attention, plot_decomposition
from vantage.inspect.reductions import parse


def test_the_passes_of_several_sequences_are_not_put_together() -> None:
    of = chat_model()
    with capturing(of, keep="weights") as both:
        vt.generate(of, ["the cat", "a dog sat on"], max_tokens=3)
    with capturing(of, keep="weights", queries=[1]) as twice:
        for prompt in ("the cat sat", "a dog"):
            vt.generate(of, prompt, max_tokens=2)
    for seen in (both, twice):
        for ask in (seen.queries, seen.weights, lambda layer, of=seen: of.tokens()):
            with pytest.raises(BadInput, match=r"pass \d starts at token 0, .* one sequence at a time, or .*\.parts"):
                ask(0)
        with pytest.raises(BadInput, match="several sequences"):
            seen.to_dict()
        assert "<table" in seen._repr_html_()  # a notebook still shows what there is
    assert [part.order.tolist() for part in both.parts["self", 0]][:2] == [[[0, 1]], [[0, 1, 2, 3, 4]]]
    with capturing(of, keep="weights") as fewer, torch.no_grad():
        of(tokens(4, rows=2))
        of(tokens(4))
    with pytest.raises(BadInput, match="pass 1 has 1 rows, and the one before it 2"):
        fewer.weights(0)


def test_one_sequence_is_read_on_through_a_cache() -> None:
    of = chat_model()
    with capturing(of, keep="weights") as seen:
        vt.generate(of, "the cat sat", max_tokens=4)
    n = seen.queries(0).shape[1]
    assert seen.queries(0).tolist() == [list(range(n))]
    assert seen.weights(0).shape[1:] == (n, n)
    assert len(seen.tokens()) == n


def test_queries_of_rows_that_start_at_different_places() -> None:
    of, x = model(), tokens(6, rows=2)
    order = torch.tensor([[0, 1, 2, 3, 4, 5], [-1, -1, 0, 1, 2, 3]])
    there = order >= 0
    with torch.no_grad():
        with capturing(of, queries=[0]), pytest.raises(Refused, match=r"columns \[0\] of row 0 and \[2\] of row 1"):
            of.hidden(x, mask=there)
        with capturing(of, keep="weights") as seen:
            of.hidden(x, mask=there)
    assert seen.queries(0).tolist() == order.tolist()
    assert len(seen.tokens(row=0)) == 6
    assert len(seen.tokens(row=1)) == 4


def ticks(figure: Figure) -> tuple[list[str], list[str]]:
    axes = figure.axes[0]
    return [t.get_text() for t in axes.get_xticklabels()], [t.get_text() for t in axes.get_yticklabels()]


def test_pictures_name_their_own_row_and_kind() -> None:
    x = tokens(5, rows=2)
    assert ticks(plot_attention(vt.capture(model(), x), 0, 0, row=1)) == (([str(n) for n in x[1].tolist()],) * 2)
    across = model("rope", "cross")
    read = source(across)
    assert read is not None
    figure = plot_attention(vt.capture(across, x[:1], source=read, kinds="cross"), 0, 0)
    assert figure.axes[0].get_title().startswith("cross attention, layer 0")
    assert ticks(figure) == ([str(n) for n in read[0].tolist()], [str(n) for n in x[0].tolist()])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"heads": slice(9, 12)}, "no head was chosen"),
        ({"layers": slice(7, 9)}, "no layer was chosen"),
        ({"layers": slice("a", None)}, "slice indices"),
        ({"queries": slice(50, 60)}, "no query was chosen"),
        ({"kinds": []}, "at least one of self"),
        ({"kinds": 3}, "at least one of self"),
        ({"keep": 5}, "top32"),
        ({"layers": 1.0}, "give a whole number, several"),
        ({"layers": torch.tensor(1.0)}, "give a whole number, several"),
        ({"limit": None}, "bytes that may be kept"),
    ],
)
def test_choices_that_are_none(options: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        vt.capture(model(), tokens(6), **options)  # pyright: ignore[reportArgumentType]


def test_tensors_that_are_no_tokens() -> None:
    for wrong in (torch.tensor(3), torch.zeros(1, 4), torch.zeros(1, 0, dtype=torch.long)):
        with pytest.raises(BadInput, match="tokens as whole numbers"):
            vt.capture(model(), wrong)
    with pytest.raises(BadInput, match="whole numbers from 0 on"), capturing(model(), queries=[-1]):
        pass


def test_rows_and_heads_that_are_not_there() -> None:
    for keep, ask in (("stats", Capture.stats), ("weights", lambda seen, layer, row: seen.top(layer, 0, 0, row=row))):
        with pytest.raises(BadInput, match="no row 5: there are 1"):
            ask(vt.capture(model(), tokens(6), keep=keep), 0, row=5)
    with pytest.raises(BadInput, match="head 99 was not taken apart: there are 0, 1"):
        plot_decomposition(decompose(model(), tokens(6), layer=0, heads=[0, 1]), 99)


@pytest.mark.parametrize(
    "wrong", [{"upto": 3.5}, {"upto": 1}, {"threshold": float("nan")}, {"pairs": 0}, {"layer": None}], ids=str
)
def test_distances_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=f"{next(iter(wrong))}=.*give"):
        distinguishable(model(), tokens(6), **({"layer": 0} | wrong))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("keep", ["weights", "stats", "top3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_limit_counts_the_bytes_that_are_kept(keep: str, dtype: torch.dtype) -> None:
    of = vt.build(model().spec).to(dtype).eval()
    seen = vt.capture(of, tokens(6), keep=keep, layers=0)
    kept = sum(t.nbytes for part in seen.parts["self", 0] for t in part.data.values())
    assert parse(keep).bytes(4 * 6, 6, dtype.itemsize) == kept
