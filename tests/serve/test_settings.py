"""Flags before the environment before the file; whatever is wrong is refused by name."""

from __future__ import annotations

import pytest

from vantage.cli.main import main
from vantage.errors import BadInput
from vantage.serve.options import OPTIONS, read_settings
from vantage.serve.settings import Access, ServedModel, ServerSettings, loopback


def test_precedence(tmp_path):
    file = tmp_path / "serve.toml"
    lines = ["port = 1", "rows = 2", "queue = 3", "stall_seconds = 4", 'api_key = "from-the-file"']
    file.write_text("\n".join(['models = ["a=x", "b=y"]', *lines]))
    environ = {"VANTAGE_PORT": "10", "VANTAGE_ROWS": "20", "VANTAGE_API_KEY": "first-key-1, second-key"}
    got = read_settings((), {"port": 100, "queue": None}, environ=environ, config=file)
    assert got.port == 100
    assert got.batching.rows == 20
    assert got.batching.queue == 3
    assert got.limits.stall_s == 4.0
    assert got.access.keys == ("first-key-1", "second-key")
    assert got.models == (ServedModel("a", "x"), ServedModel("b", "y"))
    assert read_settings(("c",), environ=environ, config=file).models == (ServedModel("c", "c"),)
    assert read_settings((), environ={"VANTAGE_CONFIG": str(file)}).port == 1
    assert read_settings((), environ={}, default="smollm2").models == (ServedModel("smollm2", "smollm2"),)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_has_its_default_and_its_range(option):
    default = getattr(read_settings(("m",), environ={}), option.part or "port", None)
    assert option.default is not None
    assert default is not None
    if option.kind in (int, float):
        for far in (option.low - 1, option.high + 1):
            with pytest.raises(BadInput, match="out of range"):
                read_settings(("m",), {option.name: option.kind(far)}, environ={})
    with pytest.raises(BadInput):
        read_settings(("m",), {option.name: object()}, environ={})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "no setting is called 'prot'"),
        ("port = 'x'", "port: 'x' is not a whole number"),
        ("port = true", "is not a whole number"),
        ("port = ", "cannot be read"),
        ("models = 1", "models must be a list"),
        ("log_level = 'loud'", "none of debug"),
        ("api_key = ['short']", "at least 8"),
        ("allow_origin = ['example.org']", "scheme and host"),
    ],
)
def test_files_that_are_wrong(tmp_path, text, said):
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=said):
        read_settings(("m",), environ={}, config=file)


def test_the_environment_is_checked_too():
    for name, value in (("VANTAGE_PORT", "x"), ("VANTAGE_PRELOAD", "perhaps"), ("VANTAGE_BODY_BYTES", "1")):
        with pytest.raises(BadInput, match=name):
            read_settings(("m",), environ={name: value})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "", "127.0.0.1.evil.example"])
def test_other_machines_need_a_key(host):
    with pytest.raises(BadInput, match="no API key is set"):
        ServerSettings((ServedModel("m", "m"),), host=host)
    assert ServerSettings((ServedModel("m", "m"),), host=host, access=Access(("a-long-key",))).host == host
    assert ServerSettings((ServedModel("m", "m"),), host=host, access=Access(allow_open=True)).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9"])
def test_loopback(host):
    assert loopback(host)
    assert ServerSettings((ServedModel("m", "m"),), host=host).host == host


def test_names(tmp_path):
    (tmp_path / "model.gguf").touch()
    assert ServedModel.of(str(tmp_path / "model.gguf")).name == "model"
    assert ServedModel.of("x=y=z") == ServedModel("x", "y=z")
    for said in ("=x", "x=", ""):
        with pytest.raises(BadInput):
            ServedModel.of(said)
    with pytest.raises(BadInput, match="two models"):
        read_settings(("a=x", "a=y"), environ={})


def test_the_command_line_refuses_in_one_line(capsys, tmp_path):
    assert main(["serve", str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["serve", "smollm2", "--host", "0.0.0.0"]) == 2
    assert "no API key" in capsys.readouterr().err
