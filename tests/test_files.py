"""Files and folders that are whole or not there at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from vantage import files
from vantage.files import append_text, remove_folder, replace_folder, replacing, settle_folder, sha256_of, write_text


def test_a_file_is_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")
    with replacing(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
        assert part.parent == path.parent  # a rename within one file system
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_an_interrupted_writer_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")

    def interrupted() -> None:
        with replacing(path) as part:
            part.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_new_file_has_the_mode_that_any_file_has(tmp_path: Path) -> None:
    write_text(tmp_path / "ours", "é")
    (tmp_path / "plain").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "ours").read_bytes() == "é".encode()


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "a", []
    monkeypatch.setattr(files, "sync", lambda it: seen.append((it == path.parent, path.exists())))
    with replacing(path) as part:
        part.touch()
    assert seen == [(False, False), (True, True)]
    with replacing(path, durable=False) as part:
        part.touch()
    assert len(seen) == 2


def test_text_is_added_at_the_end(tmp_path: Path) -> None:
    append_text(tmp_path / "log", "a\n")
    append_text(tmp_path / "log", "b\n")
    assert (tmp_path / "log").read_text() == "a\nb\n"


def folder(path: Path, text: str) -> Path:
    (path / "inner").mkdir(parents=True)
    (path / "inner" / "file").write_text(text)
    return path


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    there = folder(tmp_path / "model", "old")
    replace_folder(folder(tmp_path / "model.part", "new"), there)
    assert (there / "inner" / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["model"]
    replace_folder(folder(tmp_path / "x.part", "first"), tmp_path / "x")
    assert (tmp_path / "x" / "inner" / "file").read_text() == "first"


def test_whoever_was_faster_stays(tmp_path: Path) -> None:
    there = folder(tmp_path / "model", "first")
    settle_folder(folder(tmp_path / "late", "second"), there)
    assert (there / "inner" / "file").read_text() == "first"
    settle_folder(tmp_path / "late", tmp_path / "alone")
    assert (tmp_path / "alone" / "inner" / "file").read_text() == "second"


def test_what_cannot_be_moved_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        settle_folder(folder(tmp_path / "made", "x"), tmp_path / "file")


def test_a_folder_is_removed_and_what_was_left_of_it_before(tmp_path: Path) -> None:
    folder(tmp_path / "a.old.part", "left by a kill")
    remove_folder(folder(tmp_path / "a", "x"))
    remove_folder(tmp_path / "never there")
    assert os.listdir(tmp_path) == []


def test_the_sum_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()
