"""Settings that every test shares."""

import gc
import importlib.util
import os

import pytest
import torch
from hypothesis import Phase, settings

from tests import sampling

# Triton asks this once, when it is first imported, and torch may do that anywhere. Without a GPU its kernels are
# interpreted; with one they run.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests say what they expect of the processor, to the last bit in places; those of a GPU name it.
os.environ.setdefault("VANTAGE_DEVICE", "cpu")

# A deadline for each example would be a timed test, and this suite has none. The examples are drawn from a fixed seed,
# so that a run can be repeated; `make test` draws fewer than `make test-all`. The mutation run needs many short runs
# rather than a long one, and no smaller example of a failure: that there is one is all it asks.
settings.register_profile("vantage", deadline=None, derandomize=True)
settings.register_profile(sampling.QUICK, deadline=None, derandomize=True, max_examples=25)
PHASES = (Phase.explicit, Phase.generate)
settings.register_profile("mutation", deadline=None, derandomize=True, max_examples=25, phases=PHASES)
settings.load_profile(os.environ.get(sampling.PROFILE, "vantage"))

if importlib.util.find_spec("triton") is not None:
    # Triton 3.6's interpreter asks an array of one number for a whole number, which NumPy 2.4 refuses.
    import triton.runtime.interpreter as interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_index(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_index

STORIES = ("browser", "recipes")  # folders whose tests are all sampled
ONE_IN = 20  # sampled tests that are drawn
SEED = sampling.choose_seed()  # before any worker is started: they must draw the same


def pytest_report_header() -> str:
    return f"the cells of the matrix and the sampled tests are drawn with {sampling.NAME}={SEED}"


@pytest.hookimpl(tryfirst=True)  # before those that are slow are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the tests that are sampled, those that are not drawn are slow."""
    sampled = {
        item.nodeid: item for item in items if item.get_closest_marker("sampled") or item.path.parent.name in STORIES
    }
    drawn = sampling.draw(sorted(sampled), (), len(sampled) // ONE_IN)
    for name in sampled.keys() - drawn:
        sampled[name].add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was collected stays to the end: without this, garbage collections walk through 20,000 tests each time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter) -> None:
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"the same cells again: {sampling.NAME}={SEED} make test")
