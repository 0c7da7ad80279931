"""Older names of tensors, and what a config can be asked besides plain values."""

import pytest
import torch

from vantage.checkpoints.config import Config
from vantage.checkpoints.tensor_names import RenamedTensors
from vantage.errors import CheckpointError


class Held:
    def __init__(self, *names):
        self.tensors = {name: torch.full((i + 1,), float(i)) for i, name in enumerate(names)}

    def names(self):
        return iter(self.tensors)

    def shape(self, name):
        return tuple(self.tensors[name].shape)

    def get(self, name):
        return self.tensors[name]


OLDER = ((".gamma", ".weight"), (".beta", ".bias"))


def test_names_end_as_they_do_now():
    seen = RenamedTensors(Held("a.gamma", "a.beta", "b.gamma.c"), OLDER)
    assert seen.names() == ["a.weight", "a.bias", "b.gamma.c"]
    assert seen.shape("a.bias") == (2,)
    assert seen.get("a.bias").tolist() == [1.0, 1.0]
    assert RenamedTensors(Held("a.gamma"), ()).names() == ["a.gamma"]


def test_both_spellings_at_once_are_refused():
    with pytest.raises(CheckpointError, match=r"holds both 'a.gamma' and 'a.weight'"):
        RenamedTensors(Held("a.gamma", "a.weight"), OLDER)


def test_what_a_checkpoint_holds():
    config = Config({}, tensors=["head.weight"])
    assert config.holds("head.")
    assert not config.holds("ead")
    assert not Config({}).holds("head")


@pytest.mark.parametrize("value", [0, True, "4", [1], [1, 2, 3], [1, -1], [1.0, 2], 2**31])
def test_pairs_that_cannot_be(value):
    with pytest.raises(CheckpointError, match=r"size is .* wanted a whole number from 1 up, or two"):
        Config({"size": value}).pair("size")


def test_pairs_and_counts():
    config = Config({"one": 3, "two": [3, 4], "names": {"0": "a", "1": "b"}, "list": [1, 2, 3]})
    assert config.pair("one") == (3, 3)
    assert config.pair("two") == (3, 4)
    assert config.pair("none", (5, 6)) == (5, 6)
    assert [config.count(name, 7) for name in ("names", "list", "none")] == [2, 3, 7]
    config.settle()
    with pytest.raises(CheckpointError, match="one is 3; wanted a list or an object"):
        config.count("one", 7)
