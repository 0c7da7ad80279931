"""What all studies have in common: which there are, how one is run, and how its figures become pictures and tables."""

from __future__ import annotations

import csv as csv_file
import io
import json
import math
import re
import sys
import types
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vantage as vt
from tests.studies.synthetic import BARS, FIGURE, HEAT, HISTOGRAM, LINES, PANELS, SIGNED, study
from vantage.checkpoints.known_models import KNOWN
from vantage.errors import BadInput, Refused
from vantage.figures import Figure, Heat, Lines
from vantage.figures.drawing import draw, png, svg
from vantage.figures.palette import LIGHT
from vantage.figures.tables import csv, table
from vantage.studies import registry
from vantage.studies.runner import conduct, describe_number, format_value
from vantage.studies.shared.findings import compared, conclude, held, interval, judged, more_in_pairs
from vantage.studies.shared.models import smollm2
from vantage.studies.sources import SOURCES
from vantage.studies.study import Number, Parameter

ROOT = Path(__file__).parents[2]
LAST = {"A": 17, "P": 16, "T": 4, "K": 7, "I": 7}
OF_PAPERS = ("P15", "P16", "K7")
DOCUMENTED = [f"{letter}{n}" for letter, last in LAST.items() for n in range(1, last + 1)]

# ---- which there are


def test_there_is_a_study_for_every_tag_of_the_documents_in_their_order() -> None:
    assert list(registry.tags()) == DOCUMENTED
    assert list(vt.studies.studies()) == DOCUMENTED
    assert [one.tag for one in vt.studies.list()] == DOCUMENTED


def test_every_source_is_named_where_its_number_is_read() -> None:
    """On the page of studies, in the studio's terms, and in README how many studies there are."""
    used = {source for one in vt.studies.list() for source in one.sources}
    assert used == set(SOURCES)
    page, terms = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/studies.md", "web/src/terms.ts"))
    for name, title in SOURCES.items():
        assert f"| {name} | {title} |" in page
        assert f'{name}: "{title}"' in terms
    assert f"There are {len(DOCUMENTED)} studies" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("tag", DOCUMENTED)
def test_a_study_says_all_that_it_has_to(tag: str) -> None:
    one = vt.studies.find(tag)
    assert one.tag == tag
    assert one.title
    assert one.statement.strip()
    assert len(one.explanation.split("\n\n")) == 2
    assert all(len(part) > 150 for part in one.explanation.split("\n\n"))
    of_papers = tag[0] == "I" or tag in OF_PAPERS
    assert set(one.sources) <= {f"S{n}" for n in (range(5, 18) if of_papers else range(5))}
    assert one.sources
    assert 0 < one.seconds <= (25 if not one.trains else 3600)
    assert set(one.needs) <= set(KNOWN)
    assert len({p.name for p in one.parameters}) == len(one.parameters)
    for parameter in one.parameters:
        assert parameter.help
        assert parameter.read(parameter.default) == parameter.default
        if not parameter.choices and not isinstance(parameter.default, str):
            assert parameter.low is not None
            assert parameter.high is not None
            with pytest.raises(BadInput, match=parameter.name):
                parameter.read(parameter.high + 1)


def test_the_quick_ones_are_quick_together() -> None:
    assert sum(one.seconds for one in vt.studies.list() if not one.trains) < 300


@pytest.mark.parametrize("asked", ["A2", "a2", " a02 ", "A02"])
def test_a_tag_is_found_however_it_is_written(asked: str) -> None:
    assert vt.studies.find(asked).tag == "A2"


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("A18", "mean A17?"),
        ("2A", "mean A2?"),
        ("rope", "mean P8?"),
        ("learnt_table", "mean P6?"),
        ("X", "There are A1 to"),
    ],
)
def test_an_unknown_tag_is_refused_with_the_nearest_one(asked: str, near: str) -> None:
    with pytest.raises(BadInput, match=re.escape(near)) as caught:
        vt.studies.find(asked)
    assert asked in str(caught.value)
    assert "A1 to A17, P1 to P16, T1 to T4, K1 to K7, I1 to I7" in str(caught.value)


def test_a_file_that_does_not_import_is_no_secret(tmp_path, monkeypatch) -> None:
    (tmp_path / "k90_broken.py").touch()
    (tmp_path / "_a.py").touch()
    (tmp_path / "notes.py").touch()
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "registry.py"))
    assert registry.tags() == {"K90": "k90_broken"}
    with pytest.raises(ImportError):
        registry.studies()


def test_a_file_without_its_study_and_two_of_one_tag_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "registry.py"))
    (tmp_path / "k90_other.py").touch()
    other = types.ModuleType("vantage.studies.k90_other")
    monkeypatch.setitem(sys.modules, "vantage.studies.k90_other", other)
    with pytest.raises(ImportError, match="no STUDY"):
        registry.studies()
    other.STUDY = study("K91")  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="K91"):
        registry.find("K90")
    (tmp_path / "k90_again.py").touch()
    with pytest.raises(ImportError, match="two files"):
        registry.tags()


def test_spans_of_tags() -> None:
    assert registry.spans(["A1", "A2", "A3", "A5", "P1"]) == "A1 to A3, A5, P1"
    assert registry.spans([]) == "none"


# ---- running one


def test_an_outcome_as_data_text_and_page() -> None:
    moved = []
    outcome = conduct(study(), {"size": "3"}, lambda share, doing: moved.append((share, doing)))
    assert moved == [(0.5, "half of it")]
    assert outcome.values == {"size": 3.0, "kind": "a"}
    assert (outcome.tag, outcome.verdict) == ("A90", "mixed")
    assert outcome.numbers["size"] == 3.0
    assert outcome.command == "vantage study run A90 --set size=3.0"
    assert conduct(study(), {}).command == "vantage study run A90"
    told = json.loads(json.dumps(outcome.to_dict(), allow_nan=False))
    assert told["numbers"][1]["ours"] is None  # infinity is no JSON
    assert told["numbers"][0] == {"what": "size", "ours": 3.0, "document": 2.0, "agrees": False, "interval": [2.9, 3.1]}
    assert told["parameters"][0]["high"] == 10.0
    assert told["figures"][0]["panels"][0]["kind"] == "lines"
    assert "size: 3 [2.9, 3.1]; the document: 2, does not agree" in repr(outcome)
    page = outcome._repr_html_()
    assert "data:image/png;base64," in page
    assert "&lt;b&gt;no markup" in page
    assert "<b>no markup" not in page


def test_a_run_by_tag_takes_its_parameters_and_no_others() -> None:
    assert vt.studies.run("k3", first=0.1, second=0.1).values == {"first": 0.1, "second": 0.1}
    with pytest.raises(BadInput, match="no parameter 'third'; it has first, second"):
        vt.studies.run("K3", third=1)
    with pytest.raises(BadInput, match="between"):
        vt.studies.run("K3", first=11)
    with pytest.raises(BadInput, match="a number"):
        vt.studies.run("K3", first="much")


def test_a_model_that_is_not_there_is_named_with_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VANTAGE_HOME", str(tmp_path))
    smollm2.cache_clear()
    for ask in (lambda: vt.studies.run("K6"), lambda: conduct(study(needs=("smollm2",)), {}), smollm2):
        with pytest.raises(Refused, match="vantage pull smollm2"):
            ask()


def test_a_run_without_numbers_is_refused() -> None:
    empty = replace(study(), run=lambda values, progress: replace(study().run(values, progress), numbers=()))
    with pytest.raises(BadInput, match="no numbers"):
        conduct(empty, {})


def test_studies_and_figures_show_themselves() -> None:
    shown = study()._repr_html_()
    assert "A90 Made &lt;up&gt;" in shown
    assert "<th>size</th><td>2.0</td><td>how large</td>" in shown
    assert "<table" not in study(parameters=())._repr_html_()
    drawn = FIGURE._repr_html_()
    assert "data:image/png;base64," in drawn
    assert "<p>What to see: &lt;everything&gt;.</p>" in drawn


def test_the_list_shows_itself() -> None:
    assert repr(vt.studies.list()).splitlines()[1].startswith("A2 ")
    assert vt.studies.list()._repr_html_().count("<tr>") == len(DOCUMENTED) + 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.337585, "0.337585"),
        (12345, "12,345"),
        (1234567.8, "1,234,568"),
        (1e-7, "1e-07"),
        ("yes", "yes"),
        (1e20, "1e+20"),
    ],
)
def test_numbers_are_written_the_same_everywhere(value, text: str) -> None:
    assert format_value(value) == text


def test_a_number_in_words() -> None:
    assert describe_number(Number("n", 1, 2, False)) == "n: 1; the document: 2, does not agree"
    assert describe_number(Number("n", 1)) == "n: 1"


# ---- what studies share


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=50))
def test_the_interval_is_that_of_the_mean(samples: list[float]) -> None:
    low, high = interval(samples)
    half = 1.96 * np.std(samples, ddof=1) / math.sqrt(len(samples))
    assert (low + high) / 2 == pytest.approx(np.mean(samples), abs=1e-6)
    assert (high - low) / 2 == pytest.approx(half, rel=1e-3, abs=1e-6)


def test_one_sample_has_no_interval() -> None:
    with pytest.raises(BadInput, match="at least 2"):
        interval([1.0])


def test_agreement_is_within_what_is_allowed() -> None:
    assert compared("a", 1.0, 1.1, within=0.11).agrees is True
    assert compared("a", 1.0, 1.1, within=0.09).agrees is False
    assert compared("a", "x", "x").agrees is True
    assert compared("a", "x", "y").agrees is False
    assert (held("a", True).ours, held("a", False).agrees) == ("yes", False)


def test_the_numbers_make_the_verdict() -> None:
    good, bad, open_ = judged("good", 1, True), judged("bad", 1, False), Number("open", 1)

    def verdict(numbers, slips=()):
        return conclude("As expected.", numbers, [FIGURE], slips)

    assert verdict([good, open_]).verdict == "agrees"
    assert verdict([good], [bad]).verdict == "erratum"
    assert verdict([good], [bad]).words == "As expected."
    for odd in (verdict([good, bad]), verdict([good], [good]), verdict([bad], [bad]), verdict([good], [open_])):
        assert odd.verdict == "mixed"
        assert odd.words.startswith("Not as expected: ")


# ---- figures


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.kind + panel.title[:3])
def test_every_kind_of_panel_becomes_an_svg_in_the_pages_colours(panel) -> None:
    drawn = svg(panel, name="A2-x", label='say "hello" & go')
    root = ET.fromstring(drawn)
    assert root.tag.endswith("svg")
    assert root.get("aria-label") == 'say "hello" & go'
    assert root.get("width") is None  # the page says how wide
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    assert all(name.startswith("A2-x-") for name in ids)
    for used in re.findall(r'(?:url\(#|href="#)([^)"]+)', drawn):
        assert used in ids
    assert "var(--ink" in drawn
    assert not re.search(r"(?<!, )" + LIGHT[0], drawn)  # every colour of a line follows the paper
    assert "system-ui" in drawn
    assert svg(panel, name="A2-x", label='say "hello" & go') == drawn  # and is the same again


def test_the_texts_of_a_panel_are_in_it_as_text() -> None:
    drawn = svg(LINES)
    for text in ("first", "the document", "a &lt; b &amp; a long title"):
        assert text in drawn
    shown = svg(HEAT)
    assert ">0.75<" in shown.replace("\n", "").replace(" ", "")
    assert "20,000" in svg(BARS)


def test_a_figure_with_all_panels_as_matplotlib_and_png() -> None:
    drawn = draw(FIGURE)
    assert len(drawn.subfigs) == 6  # two rows of three, the last one empty
    titles = [cell.get_suptitle().replace("\n", " ") for cell in drawn.subfigs]
    assert titles == [*(panel.title for panel in PANELS), ""]
    assert png(FIGURE, dpi=40)[:8] == b"\x89PNG\r\n\x1a\n"


def test_an_svg_that_stands_alone() -> None:
    alone = svg(SIGNED, alone=True)
    assert alone.startswith("<?xml")
    assert "var(--" not in alone


def test_a_figure_without_panels_is_refused() -> None:
    with pytest.raises(BadInput, match="nothing to draw"):
        draw(Figure("empty", "Nothing.", ()))


@pytest.mark.parametrize("values", [((0.0, 0.0), (0.0, 0.0)), ((None, None),), ((math.inf, 1.0),), ((-3.0,),)])
def test_a_heat_map_of_hardly_anything_is_drawn(values) -> None:
    ET.fromstring(svg(Heat("odd", "x", "y", values, written=True)))
    ET.fromstring(svg(Heat("odd", "x", "y", values, diverging=True)))


def test_no_lines_are_drawn_too() -> None:
    ET.fromstring(svg(Lines("none", "x", "y", ())))


def test_the_data_of_a_figure_as_tables() -> None:
    lines, bars, heat, _, samples = table(FIGURE)
    assert lines.header == ("line", "x", "y", "low", "high")
    assert lines.rows[1] == ("first", 2, 0.5, 0.4, 0.6)
    assert lines.rows[4] == ("2", 1, 1, None, None)
    assert bars.rows == (("one", 1, 3), ("two", 20000, 4))
    assert heat.header == ("query \\ key", "k1", "k2")
    assert heat.rows == (("q1", 1.0, None), ("q2", 0.25, 0.75))
    assert samples.rows == ((0, 0.0, 1.0), (1, 0.5, 2.0), (2, 1.0, None))


def test_the_data_of_a_figure_as_csv() -> None:
    rows = list(csv_file.reader(io.StringIO(csv(HISTOGRAM))))
    assert rows == [["# samples"], ["sample", "a", "b"], ["0", "0.0", "1.0"], ["1", "0.5", "2.0"], ["2", "1.0", ""]]
    assert csv(FIGURE).count("\n\n") == len(PANELS) - 1


@pytest.mark.parametrize("said_so", [3.5, "3.5", float("nan"), float("inf"), "many", 0, 11])
def test_a_whole_number_within_its_bounds(said_so: object):
    parameter = Parameter("heads", 4, "how many", low=1, high=10)
    assert parameter.read("7") == parameter.read(7.0) == 7
    with pytest.raises(BadInput, match="heads is"):
        parameter.read(said_so)  # pyright: ignore[reportArgumentType] (what a user may type)


def test_pairs_are_compared_by_their_differences() -> None:
    high, low = [1.0, 5.0, 9.0], [0.5, 4.4, 8.6]
    assert interval(high)[0] < interval(low)[1]  # each by itself says nothing
    assert more_in_pairs(high, low)
    assert not more_in_pairs(low, high)
    assert not more_in_pairs([1.0, 2.0], [1.1, 1.9])
