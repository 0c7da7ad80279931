"""Tokens on disk: what went in comes out, once, and damage is noticed."""

import gzip
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import vantage as vt
from vantage.checkpoints.pull import PullError
from vantage.errors import BadInput, CheckpointError
from vantage.training.text import BPE, END, START, Bytes, Characters, Existing, Shards, build_vocabulary, prepare
from vantage.training.text import files as files_module


@pytest.fixture
def texts(tmp_path):
    for i, text in enumerate(["one fish\n", "two fish\n\nred fish\n", "blue </s> fish"]):
        (tmp_path / f"{i}.txt").write_text(text)
    return tmp_path / "*.txt"


@pytest.mark.parametrize("shard", [3, 7, 2**20])
@pytest.mark.parametrize("kind", [Bytes(), Bytes((START, END)), Characters((END,)), BPE(270)])
def test_documents_come_out_as_they_went_in(kind, shard, texts, tmp_path):
    shards = prepare(texts, kind, tmp_path / "made", shard=shard)
    tokenizer = shards.tokenizer
    edges = shards.documents
    assert len(edges) == 4
    for i, text in enumerate(["one fish\n", "two fish\n\nred fish\n", "blue </s> fish"]):
        ids = shards.read(int(edges[i]), int(edges[i + 1] - edges[i])).tolist()
        if tokenizer.bos is not None:
            assert ids.pop(0) == tokenizer.bos
        if tokenizer.eos is not None:
            assert ids.pop() == tokenizer.eos
            assert tokenizer.eos not in ids
        assert tokenizer.decode(ids) == text
    assert edges[-1] == len(shards)
    whole = shards.read(0, len(shards))
    for start in range(len(shards)):
        np.testing.assert_array_equal(shards.read(start, min(5, len(shards) - start)), whole[start : start + 5])
    with pytest.raises(BadInput, match="not all there"):
        shards.read(len(shards) - 1, 2)


def test_long_files_are_encoded_in_pieces_as_if_whole(tmp_path, monkeypatch):
    text = "".join(f"line {i}, of some length\n\n" for i in range(200))
    (tmp_path / "a.txt").write_text(text)
    kind = BPE(300)
    whole = prepare(tmp_path / "a.txt", kind, tmp_path / "whole")
    monkeypatch.setattr(files_module, "PIECE", 100)
    cut = prepare(tmp_path / "a.txt", whole.tokenizer, tmp_path / "cut")
    np.testing.assert_array_equal(whole.read(0, len(whole)), cut.read(0, len(cut)))
    assert list(cut.documents) == [0, len(cut)]


def test_a_separator_makes_documents(tmp_path):
    (tmp_path / "a.txt").write_text("one\n%\ntwo\n%\n%\nthree\n")
    shards = prepare(tmp_path / "a.txt", Bytes(), tmp_path / "made", separator="%")
    assert list(shards.documents) == [0, 4, 8, 14]  # what is empty is no document


def test_any_file_can_be_read_as_bytes(tmp_path):
    data = bytes(range(256)) * 3
    (tmp_path / "a.bin").write_bytes(data)
    shards = prepare(tmp_path / "a.bin", Bytes(), tmp_path / "made")
    assert shards.read(0, len(shards)).tolist() == list(data)
    assert shards.index.dtype == "<u2"


def test_the_second_time_nothing_is_made(texts, tmp_path):
    seen: list[tuple[int, int]] = []

    def go(kind, where):
        return prepare(where, kind, tmp_path / "made", progress=lambda *done: seen.append(done))

    first = go(BPE(270), texts)
    total = 2 * sum(path.stat().st_size for path in tmp_path.glob("*.txt"))  # once to learn the vocabulary
    assert [done for done, _ in seen][-1] == total
    assert {of for _, of in seen} == {total}
    seen.clear()
    for path in tmp_path.glob("*.txt"):
        os.utime(path, (0, 0))  # dates do not matter
    again = go(BPE(270), texts)
    assert not seen
    assert again.folder == first.folder
    assert go(first.tokenizer, texts).folder != first.folder  # a vocabulary given is not one that was learnt here
    assert go(BPE(271), texts).folder != first.folder
    (tmp_path / "1.txt").write_text("two more fish")
    assert go(BPE(270), texts).folder != first.folder
    assert not list((tmp_path / "made").glob(".making-*"))


@pytest.mark.parametrize(("kind", "passes"), [(Bytes(), 1), (Characters(), 2), (BPE(270), 2)])
@pytest.mark.parametrize("packed", [False, True])
def test_progress_moves_within_a_file(tmp_path, monkeypatch, kind, passes, packed):
    """By the bytes of the file on disk, up to all of them; the first pass is the one that learns the vocabulary."""
    monkeypatch.setattr(files_module, "PIECE", 1000)
    rng = random.Random(0)
    text = "".join(rng.choice("abcdefg é\n") for _ in range(150_000)).encode()
    file = tmp_path / ("a.txt.gz" if packed else "a.txt")
    file.write_bytes(gzip.compress(text) if packed else text)
    seen: list[tuple[int, int]] = []
    prepare(file, kind, tmp_path / "made", progress=lambda *done: seen.append(done))
    size = file.stat().st_size
    assert {of for _, of in seen} == {passes * size}
    done = [at for at, _ in seen]
    assert done == sorted(done)
    assert done[-1] == passes * size
    for turn in range(passes):
        assert len({at for at in done if turn * size < at < (turn + 1) * size}) > 3


def test_an_existing_vocabulary_is_known_by_what_it_is(texts, tmp_path):
    voc = tmp_path / "voc"
    voc.mkdir()
    build_vocabulary(Bytes()).save(voc)
    first = prepare(texts, Existing(str(voc)), tmp_path / "made")
    build_vocabulary(Bytes((END,))).save(voc)
    assert prepare(texts, Existing(str(voc)), tmp_path / "made").folder != first.folder


def test_the_tokenizer_of_a_real_model_is_kept(texts, tmp_path):
    try:
        kind = Existing(str(vt.pull("smollm2")))
    except PullError as e:
        pytest.skip(f"smollm2 cannot be pulled here: {e}")
    made = prepare(texts, kind, tmp_path / "made")
    again = Shards(made.folder)
    ids = again.read(0, int(again.documents[1])).tolist()
    assert ids[-1] == again.tokenizer.eos
    assert again.tokenizer.decode(ids) == "one fish\n"
    assert again.tokenizer.template == made.tokenizer.template is not None


def test_files_without_text_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(BadInput, match="no text in these files"):
        prepare(tmp_path / "a.txt", Bytes(), tmp_path / "made")
    assert not list((tmp_path / "made").iterdir())


def test_a_character_that_the_vocabulary_lacks_is_named_with_its_file(tmp_path):
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "b.txt").write_text("abcé")
    tokenizer = build_vocabulary(Characters(), tmp_path / "a.txt")
    with pytest.raises(BadInput, match=r"b\.txt: the vocabulary has no 'é'"):
        prepare(tmp_path / "b.txt", tokenizer, tmp_path / "made")


# ---- damage


@pytest.fixture
def made(texts, tmp_path):
    return prepare(texts, BPE(270), tmp_path / "made", shard=8).folder


@pytest.mark.parametrize("name", ["tokens-00001.bin", "documents.bin"])
def test_a_truncated_file_is_noticed(made, name):
    path = made / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"bytes and should have .* prepare the files again"):
        Shards(made)


@pytest.mark.parametrize("name", ["tokens-00000.bin", "documents.bin"])
def test_a_flipped_bit_is_noticed_and_a_missing_file_too(made, name):
    path = made / name
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"is damaged, its checksum is another: remove the folder"):
        Shards(made)
    Shards(made, verify=False)
    path.unlink()
    with pytest.raises(CheckpointError, match=f"has no file '{name}'.* remove the folder"):
        Shards(made)


def test_prepare_notices_as_well(texts, made, tmp_path):
    (made / "tokens-00000.bin").unlink()
    with pytest.raises(CheckpointError, match="remove the folder"):
        prepare(texts, BPE(270), tmp_path / "made", shard=8)
    for path in made.iterdir():
        path.unlink()
    (made / "other").touch()
    with pytest.raises(CheckpointError, match=r"lacks its index\.json"):
        prepare(texts, BPE(270), tmp_path / "made", shard=8)


def test_an_index_of_another_kind_is_refused(made):
    said = json.loads((made / "index.json").read_text())
    (made / "index.json").write_text(json.dumps(said | {"format": "vantage tokens 9"}))
    with pytest.raises(CheckpointError, match="does not say 'vantage tokens 1'"):
        Shards(made)
    del said["vocab"]
    (made / "index.json").write_text(json.dumps(said))
    with pytest.raises(CheckpointError, match="not as it was written"):
        Shards(made)
    text = json.dumps(said)
    (made / "index.json").write_text(text[: len(text) // 2])
    with pytest.raises(
        CheckpointError, match=f"{made}: index.json is not JSON.*: remove the folder {made} and prepare"
    ):
        Shards(made)
    (made / "index.json").unlink()
    with pytest.raises(BadInput, match=r"holds no index\.json"):
        Shards(made)


def test_another_vocabulary_is_refused(made):
    with pytest.raises(BadInput, match="another vocabulary, of 270 tokens and not this one of 256"):
        Shards(made, tokenizer=build_vocabulary(Bytes()))
    build_vocabulary(Bytes()).save(made)
    with pytest.raises(CheckpointError, match="is not the one its tokens were made with"):
        Shards(made)


def test_a_full_disk_leaves_nothing(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 200_000)
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(BadInput, match=r"cannot write tokens .* make room"):
            prepare(tmp_path / "a.txt", Bytes(), tmp_path / "made")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list((tmp_path / "made").iterdir())
    assert len(prepare(tmp_path / "a.txt", Bytes(), tmp_path / "made")) == 200_000


KILLED = """
import sys
from vantage.training.text import Bytes, prepare
def progress(done, of):
    print("half", flush=True)
    sys.stdin.read()
prepare([sys.argv[1], sys.argv[2]], Bytes(), sys.argv[3], shard=4, progress=progress)
"""


@pytest.mark.sampled
def test_killed_in_the_middle_nothing_half_done_is_found(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text("some text of " + name)
    args = [sys.executable, "-c", KILLED, str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "made")]
    child = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"half\n"
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    (left,) = (tmp_path / "made").iterdir()
    assert left.name.startswith(".making-")
    shards = prepare([tmp_path / "a", tmp_path / "b"], Bytes(), tmp_path / "made", shard=4)
    assert bytes(shards.read(0, len(shards)).tolist()) == b"some text of asome text of b"
    assert left.exists()  # it might be another process's, still at work
    os.utime(left, (time.time() - 10**6,) * 2)
    prepare(tmp_path / "a", Bytes(), tmp_path / "made")
    assert not left.exists()
