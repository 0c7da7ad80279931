"""Where a cluster is, as users write it; and no Ray to go there with."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import pytest

from vantage.cli.main import main
from vantage.cluster import MAX_ATTEMPTS, TRANSIENT_ERROR, address_of, joined
from vantage.compare.results import FILE
from vantage.errors import BadInput, Refused
from vantage.serve.on_ray import cores_each
from vantage.serve.options import read_settings
from vantage.serve.settings import ServedModel, ServerSettings

BAD = [
    *("", "rya", "Ray", "ray:", "ray://", "ray://:10001", "ray://host:0", "ray://host:65536", "ray://host:port"),
    *("http://host:10001", "ray://key@host", "ray://host/path", "ray://-host", "ray://host:1 2", "host:10001"),
]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("ray", None),
        ("ray://head.example.org", "ray://head.example.org:10001"),
        ("ray://10.0.0.7:20001/", "ray://10.0.0.7:20001"),
        ("ray://[::1]:20001", "ray://[::1]:20001"),
    ],
)
def test_addresses(said, meant):
    assert address_of(said) == meant


@pytest.mark.parametrize("said", BAD)
def test_what_is_no_address(said, tmp_path, capsys):
    with pytest.raises(BadInput, match="--on"):
        address_of(said)
    assert main(["compare", "--on", said, "--steps", "8", "--out", str(tmp_path / "out")]) == 2
    assert "--on" in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "out" / FILE).exists()
    if said:  # nothing: this process
        with pytest.raises(BadInput, match="--on"):
            ServerSettings((ServedModel("a", "b"),), on=said)


def test_without_ray_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["compare", "--on", "ray", "--steps", "8", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert "pip install 'vantage[ray]'" in said[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fails", "with_", "asked"), [(1, TRANSIENT_ERROR, 2), (MAX_ATTEMPTS, TRANSIENT_ERROR, MAX_ATTEMPTS), (1, "no", 1)]
)
def test_a_client_that_fails_by_chance_is_tried_again(fails, with_, asked, monkeypatch, capsys):
    """Ray's own fault, which comes and goes; so somebody has to play its part."""
    calls: list[str] = []

    def init(address, **rest):
        calls.append(address)
        if len(calls) <= fails:
            raise RuntimeError(f"Initialization failure from server: {with_}")

    played = SimpleNamespace(init=init, is_initialized=lambda: False, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", played)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        if fails < asked:
            with joined(address) as ray:
                assert ray is played
        else:
            with pytest.raises(Refused, match=with_), joined(address):
                pass
    assert calls == [address] * asked
    assert capsys.readouterr().err.count("trying again") == asked - 1


def test_a_loaded_model_is_not_spread(tmp_path, capsys):
    text = tmp_path / "x.txt"
    text.write_text("some words")
    out = str(tmp_path / "out")
    assert main(["compare", "--extend", "smollm2", "--text", str(text), "--on", "ray", "--out", out]) == 2
    assert "--on" in capsys.readouterr().err


def test_replicas_want_a_cluster():
    with pytest.raises(BadInput, match="--on ray"):
        read_settings(("a=b",), {"replicas": 2}, environ={})
    with pytest.raises(BadInput, match="out of range"):
        read_settings(("a=b",), {"replicas": 0, "on": "ray"}, environ={})
    assert read_settings(("a=b",), environ={"VANTAGE_ON": "ray", "VANTAGE_REPLICAS": "3"}).replicas == 3


def test_the_server_itself_is_on_a_machine_of_the_cluster(tmp_path, capsys):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    assert main(["serve", str(tmp_path / "m"), "--on", "ray://head.example.org"]) == 2
    assert "Run it there, with --on ray" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("machines", "replicas", "each"), [([8], 1, 8), ([8], 3, 2), ([4, 4], 3, 2), ([4, 1, 1], 2, 2), ([1, 1], 2, 1)]
)
def test_replicas_share_the_cores_that_there_are(machines, replicas, each):
    assert cores_each(machines, replicas) == each


def test_more_replicas_than_cores_are_refused():
    with pytest.raises(ValueError, match="has 3"):
        cores_each([2, 1], 4)
