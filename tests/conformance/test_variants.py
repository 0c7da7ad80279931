"""What the matrix tries of each part, what a part is by its name, which of them compete and the bounds of their fields,
as committed: a size that changes is seen.

`python -m tests.conformance.test_variants` writes the list anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vantage.attention import ATTENTIONS, INDEXERS, OUTPUT_PARTS, QK_PARTS
from vantage.cache import CACHES
from vantage.conformance.factors import attentions, caches, encodings, masks
from vantage.errors import BadInput
from vantage.position import ENCODINGS
from vantage.position.scaling import SCALINGS
from vantage.spec.registry import parameters

LIST = Path(__file__).with_name("variants.txt")
REGISTRIES = (ENCODINGS, SCALINGS, ATTENTIONS, QK_PARTS, OUTPUT_PARTS, INDEXERS, CACHES)


def lines() -> Iterator[str]:
    yield from (f"encoding {name}: {make()!r}" for name, make in encodings().items())
    yield from (f"attention {name}: {case!r}" for name, case in attentions().items())
    yield from (f"mask {name}: {mask!r}" for name, mask in masks().items())
    yield from (f"cache {name}: {kind!r}" for name, kind in caches().items())
    for registry in REGISTRIES:
        for entry in (entry for entry in registry.entries() if entry.default is not None):
            for number in (8, None):  # heads, or the longest row
                with suppress(BadInput):  # some need one
                    yield f"{registry.what} {entry.name} by its name, {number}: {entry.make(number)!r}"
    for registry in (ENCODINGS, ATTENTIONS, OUTPUT_PARTS, INDEXERS):
        yield f"compared, {registry.what}: {', '.join(e.name for e in registry.entries() if e.compared)}"
    yield f"compared randomised as well: {', '.join(e.name for e in ENCODINGS.entries() if e.randomised)}"
    for registry in REGISTRIES:
        for entry in registry.entries():
            for name, info in parameters(entry.config).items():
                bounds = info.choices or (info.low, info.high)
                yield f"field of {registry.what} {entry.name}: {name}, {bounds}, a form shows {info.default}"


def test_what_is_tried_is_the_committed_list():
    assert list(lines()) == LIST.read_text().splitlines(), "run `python -m tests.conformance.test_variants`"


if __name__ == "__main__":
    LIST.write_text("".join(f"{line}\n" for line in lines()))
