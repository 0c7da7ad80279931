"""Results that are kept, and what is flagged beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.compare import figures, kept_file, kind, main

OURS, THEIRS = {"vantage": "0.1.0", "torch": "2.13.0"}, {"torch": "2.13.0", "transformers": "5.22.2"}


def contestant(name: str, versions: dict[str, str], median: float) -> dict[str, Any]:
    return {"name": name, "versions": versions, "seconds": {"median": median}, "rounds": [[median]], "others": []}


def result(
    name: str = "forward", ratio: float | None = 0.8, cpu: str = "AMD EPYC (avx2)", **more: Any
) -> dict[str, Any]:
    contestants = [contestant("vantage", OURS, 2.0)]
    ratios = []
    if ratio is not None:
        contestants.append(contestant("transformers", THEIRS, 2.0 / ratio))
        ratios.append({"of": "vantage", "over": "transformers", "measure": "seconds", "value": ratio})
    machine = {"cpu": cpu, "cores": 2, "platform": "Linux"}
    made = {"name": name, "date": "2026-11-16", "commit": "abc", "machine": machine}
    return {**made, "contestants": contestants, "ratios": ratios, **more}


@pytest.fixture
def compared(tmp_path: Path):
    """Keeps one result, then compares another with it; the exit code."""

    def compare(before: dict[str, Any], now: dict[str, Any]) -> int:
        results = tmp_path / "results"
        results.mkdir()
        arguments = ["--results", str(results), "--kept", str(tmp_path / "kept")]
        (results / "x.json").write_text(json.dumps(before))
        assert main([*arguments, "--keep"]) == 0
        (results / "x.json").write_text(json.dumps(now))
        return main(arguments)

    return compare


def test_what_fell_by_more_than_a_tenth_is_flagged(compared, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(result(ratio=0.80), result(ratio=0.89)) == 1
    assert (
        "SLOWER  forward, seconds of vantage over transformers: 0.8 then, 0.89 now (1.11 times)"
        in capsys.readouterr().out
    )


def test_what_fell_by_less_or_rose_is_not(compared, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(result(ratio=0.80), result(ratio=0.87)) == 0
    assert "SLOWER" not in capsys.readouterr().out


def test_a_slow_hour_is_no_slower_library(compared) -> None:
    """Both took three times as long: the ratio is what it was."""
    now = result(ratio=0.80)
    for one in now["contestants"]:
        one["seconds"]["median"] *= 3
    assert compared(result(ratio=0.80), now) == 0


def test_a_bench_without_a_peer_is_compared_by_its_seconds(compared) -> None:
    now = result(ratio=None)
    now["contestants"][0]["seconds"]["median"] *= 1.2
    assert compared(result(ratio=None), now) == 1


def test_another_kind_of_machine_is_not_compared(compared, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(result(ratio=0.5), result(ratio=2.0, cpu="Intel Xeon (avx512f)")) == 0
    assert "nothing is kept for this kind of machine (intel-xeon-avx512f-2)" in capsys.readouterr().out


def test_a_peer_of_another_version_is_not_compared(compared, capsys: pytest.CaptureFixture[str]) -> None:
    now = result(ratio=2.0)
    now["contestants"][1]["versions"] = {"torch": "2.13.0", "transformers": "6.0"}
    assert compared(result(ratio=0.5), now) == 0
    assert "other versions" in capsys.readouterr().out


def test_without_results_there_is_nothing_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(tmp_path)]) == 2
    assert "make bench" in capsys.readouterr().err


def test_what_is_kept_has_machine_and_date_and_no_rounds(compared, tmp_path: Path) -> None:
    before = result()
    compared(before, before)
    path = kept_file(before, tmp_path / "kept")
    kept = json.loads(path.read_text())
    assert path.parent.name == kind(before) == "amd-epyc-avx2-2"
    assert (kept["date"], kept["machine"]["cpu"]) == ("2026-11-16", "AMD EPYC (avx2)")
    assert figures(kept) == figures(before)
    assert all("rounds" not in one for one in kept["contestants"])
