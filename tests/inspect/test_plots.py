"""Pictures: figures that nobody had to look at to know they are there, and reductions that lose no bright cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

import vantage as vt
from tests.generation.folder import chat_model
from tests.inspect.models import model, tokens
from vantage.errors import BadInput
from vantage.figures.canvas import save
from vantage.figures.heatmap import SIDE
from vantage.inspect import (
    atlas,
    cost,
    decompose,
    distinguishable,
    extend,
    plot_atlas,
    plot_attention,
    plot_cost,
    plot_decomposition,
    plot_distances,
    plot_extension,
    plot_heads,
)


def figures() -> list[Figure]:
    of = chat_model()
    seen = vt.capture(of, "the cat sat on a mat", steps=2)
    text = "the cat sat on a mat and said: 12 dogs, 3 birds? no! " * 20
    both = vt.capture(model("rope", "cross"), tokens(6), source=tokens(5))
    return [
        plot_attention(seen, 0, 3),
        plot_attention(both, 0, 1, "cross"),
        plot_heads(seen, 1),
        plot_decomposition(decompose(of, "the cat sat", layer=0), 2),
        plot_decomposition(decompose(model("alibi"), tokens(5), layer=0)),
        plot_atlas(atlas(of, text, longest=30)),
        plot_cost(cost(of, context=30)),
        plot_distances(distinguishable(of, "the cat", layer=0, upto=60)),
        plot_extension(extend(of, vt.swap(of, base=9.0), text, [100], tries=0)),
    ]


@pytest.mark.sampled
def test_every_picture_is_a_figure_that_can_be_written(tmp_path: Path) -> None:
    for i, figure in enumerate(figures()):
        assert isinstance(figure, Figure)
        assert figure.axes
        figure.savefig(tmp_path / f"{i}.png", dpi=40)
        assert (tmp_path / f"{i}.png").read_bytes().startswith(b"\x89PNG")
    save(figure, str(tmp_path / "a.png"), "title")
    assert (tmp_path / "a.png").stat().st_size > (tmp_path / f"{i}.png").stat().st_size
    save(figure, str(tmp_path / "a.svg"), "title")
    assert "<svg" in (tmp_path / "a.svg").read_text()
    save(figure, str(tmp_path / "a.html"), "5 < 6", "<p>below</p>")
    shown = (tmp_path / "a.html").read_text()
    assert "5 &lt; 6" in shown
    assert "data:image/png;base64," in shown
    assert "<p>below</p>" in shown
    for name, says in (("a.gif", "ends in .png"), ("nowhere/a.png", "no folder")):
        with pytest.raises(BadInput, match=says):
            save(figure, str(tmp_path / name), "title")


def test_long_texts_are_drawn_reduced_with_a_note() -> None:
    of = vt.build(vt.decoder(vocab=19, width=16, layers=1, heads=2)).eval()
    seen = vt.capture(of, tokens(1100), heads=0, keep="top4")
    figure = plot_attention(seen, 0, 0)
    assert "1,100 x 1,100 cells reduced by maximum" in figure.axes[0].get_title()
    assert figure.axes[0].images[0].get_array().shape == (SIDE, SIDE)
    assert figure.axes[0].get_xlim() == (-0.5, 1099.5)  # numbered as the tokens are
