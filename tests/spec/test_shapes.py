"""Shapes stand in names: `q_BHTd` is (B, H, T, d). Here every such name is held to it while cells run."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections import Counter

import pytest
import torch
from jaxtyping import Shaped, jaxtyped
from torch import Tensor

import vantage
from vantage.conformance.scenarios import run_cell
from vantage.kernels.reference import grouped_matmul

NAMED = re.compile(r".*_([A-Za-z]{1,5})$")
PACKAGES = ("attention", "cache", "kernels", "model", "position")
CELLS = [
    ("rope-adjacent", "grouped", "window", "ring", "sdpa", "ragged"),
    ("alibi", "softcap", "causal", "paged", "flex", "left-padded"),
    ("shaw", "sinks", "causal", "contiguous", "reference", "fork"),
    ("xl", "latent", "prefix", "quantised", "sdpa", "packed"),
    ("cope", "cross", "causal", "fixed", "reference", "rollback"),
    ("fire", "hard", "chunked", "none", "reference", "randomised"),
    ("kerple-log", "wide-values", "bidirectional", "none", "sdpa", "full"),
    ("t5", "qk-norm", "causal", "contiguous", "reference", "steps"),
    ("sinusoidal", "temperature", "causal", "contiguous", "flex", "steps"),
    ("shifted", "multi-query", "causal", "paged", "sdpa", "steps"),
]


def dims(name: str) -> str | None:
    """The dimensions that a parameter's name states, as jaxtyping writes them."""
    found = NAMED.match(name)
    letters = found.group(1) if found else ""
    return " ".join(letters) if letters[:1].isupper() or letters == "k" else None


def held(function, stated: dict[str, str], counts: Counter[str]):
    """The function, refusing tensors whose shape is not the stated one. Letters agree within one call."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        with jaxtyped("context"):
            for name, shape in stated.items():
                value = given.get(name)
                if isinstance(value, Tensor):
                    counts[function.__qualname__] += 1
                    assert isinstance(value, Shaped[Tensor, shape]), (
                        f"{function.__qualname__}: {name} is {tuple(value.shape)}"
                    )
        return function(*args, **kwargs)

    return checked


def functions():
    """(owner, name, function, stated shapes) of everything in the packages with shapes in its signature."""
    for package in PACKAGES:
        root = importlib.import_module(f"vantage.{package}")
        for info in pkgutil.iter_modules(root.__path__, root.__name__ + "."):
            module = importlib.import_module(info.name)
            owners = [module, *(c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == info.name)]
            for owner in owners:
                for name, function in list(vars(owner).items()):
                    if inspect.isfunction(function) and function.__module__ == info.name:
                        stated = {p: s for p in inspect.signature(function).parameters if (s := dims(p))}
                        if stated:
                            yield owner, name, function, stated


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    for owner, name, function, stated in functions():
        monkeypatch.setattr(owner, name, held(function, stated, counts))
    return counts


@pytest.mark.parametrize("cell", CELLS, ids="/".join)
def test_tensors_have_the_shapes_that_their_names_state(cell, counts):
    assert run_cell(cell) < 1e-9
    assert len(counts) >= 8  # so many different functions were held to it


def test_names_are_read_as_shapes():
    assert dims("q_BHTd") == "B H T d"
    assert dims("freq_k") == "k"
    assert dims("max_distance") is None
    assert dims("key_dim") is None
    assert dims("x") is None


def test_a_wrong_shape_is_caught():
    checked = held(grouped_matmul, {"a_BHTx": "B H T x", "b_BGxy": "B G x y"}, Counter())
    a, b = torch.zeros(2, 4, 3, 5), torch.zeros(2, 2, 5, 7)
    assert checked(a, b).shape == (2, 4, 3, 7)
    with pytest.raises(AssertionError, match="b_BGxy"):
        checked(a, torch.zeros(2, 2, 6, 7))


def test_it_looks_at_the_whole_package():
    assert vantage.__name__ in {o.__name__.partition(".")[0] for o, *_ in functions() if inspect.ismodule(o)}
    assert sum(1 for _ in functions()) > 50
