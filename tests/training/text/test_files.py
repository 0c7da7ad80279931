"""Files: patterns, documents, and what is wrong with them."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vantage.errors import BadInput
from vantage.training.text import expand
from vantage.training.text import files as module
from vantage.training.text.files import byte_pieces, lines, pieces, records


def test_patterns_are_sorted_and_names_keep_their_order(tmp_path):
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text("x")
    assert expand([tmp_path / "c.md", str(tmp_path / "*.txt"), tmp_path / "a.txt"]) == [
        tmp_path / name for name in ("c.md", "a.txt", "b.txt")
    ]


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(BadInput, match="there is no file"):
        expand(tmp_path / "nowhere.txt")
    with pytest.raises(BadInput, match="there is no file"):
        expand(str(tmp_path / "*.txt"))
    with pytest.raises(BadInput, match="is a folder"):
        expand(tmp_path)
    with pytest.raises(BadInput, match="no files"):
        expand([])


@given(st.text(st.sampled_from("ab \n\r-é"), max_size=60), st.integers(1, 9))
def test_pieces_put_together_are_the_file(tmp_path_factory, text, size):
    path = tmp_path_factory.mktemp("p") / "a.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", size)
        found, raw = list(pieces(path)), list(byte_pieces(path))
    assert "".join(piece for piece, _ in found) == text
    assert b"".join(piece for piece, _ in raw) == text.encode()
    assert [last for _, last in found] == [False] * (len(found) - 1) + [True]


def test_a_separator_ends_documents_and_is_left_out(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n---\nthree --- four\n---\n")
    assert list(pieces(path, separator="---")) == [("one\ntwo\n", True), ("three --- four\n", True), ("", True)]
    assert [p for p, _ in byte_pieces(path, separator="---")] == [b"one\ntwo\n", b"three --- four\n", b""]


def test_gz_is_read_and_a_damaged_one_named(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("héllo\nyou\u2028there\r\n".encode() * 100))
    assert lines(path)[:2] == ["héllo", "you\u2028there"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInput, match=r"a\.txt\.gz is damaged"):
        lines(path)


def test_what_is_not_text_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abc\xff\xfe")
    with pytest.raises(BadInput, match=r"a\.txt is not UTF-8"):
        list(pieces(tmp_path / "a.txt"))
    assert list(byte_pieces(tmp_path / "a.txt")) == [(b"abc\xff\xfe", True)]


def test_records_name_the_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n')
    assert list(records(path)) == [(1, {"a": 1}), (3, {"a": 2})]
    path.write_text('{"a": 1}\n{"a"\n')
    with pytest.raises(BadInput, match="line 2 is not JSON"):
        list(records(path))
    path.write_text("[1]\n")
    with pytest.raises(BadInput, match="line 1: expected an object, got list"):
        list(records(path))
