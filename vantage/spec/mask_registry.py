"""The masks there are. A mask in a file of its own has its ``ENTRY`` there and one line here."""

from __future__ import annotations

from vantage.spec.masks import (
    And,
    Causal,
    Chunked,
    Everything,
    Filled,
    Mask,
    Nothing,
    Or,
    Prefix,
    SameSegment,
    Window,
)
from vantage.spec.registry import Entry, Registry, entries_of

MASKS: Registry[Mask] = Registry(
    "mask",
    (
        Entry(
            "causal",
            Causal,
            "Causal",
            "A query sees itself and earlier tokens.",
            variants={"causal": lambda size: Causal() & SameSegment()},
        ),
        Entry(
            "window",
            Window,
            "Window",
            "A query sees keys less than n places away, itself included.",
            variants={"window": lambda size: Causal() & Window(size.reach) & SameSegment()},
        ),
        Entry(
            "chunked",
            Chunked,
            "Chunked",
            "A document is cut into chunks of n; a query sees its own chunk.",
            variants={"chunked": lambda size: Causal() & Chunked(size.reach) & SameSegment()},
        ),
        Entry(
            "prefix",
            Prefix,
            "Prefix",
            "Every query sees the first n keys of a document.",
            variants={"prefix": lambda size: (Causal() | Prefix(size.prefix)) & SameSegment()},
        ),
        Entry(
            "everything",
            Everything,
            "Everything",
            "Every query sees every key.",
            variants={"bidirectional": lambda size: Everything() & SameSegment()},
        ),
        Entry("nothing", Nothing, "Nothing", "No query sees any key.", variants={}),
        Entry("same-segment", SameSegment, "Same document", "A query sees its own document.", variants={}),
        Entry("filled", Filled, "Filled", "Empty places neither see nor are seen.", variants={}),
        Entry("and", And, "Both", "What both masks let through.", variants={}),
        Entry("or", Or, "Either", "What either mask lets through.", variants={}),
        *entries_of(
            "vantage.spec",  # and those in files of their own
        ),
    ),
    needs=("__call__", "simplified", "reach", "settled"),
)
