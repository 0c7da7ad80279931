"""Where the rows of a call stand in their caches, as the native kernels read it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32

from vantage.cache.ledger import Layout, LedgerExtension
from vantage.kernels.native import RowLocation

Locations = tuple[ctypes.Array[RowLocation], list[object]]  # and the tables of blocks that they point to


def layer_locations(layouts: list[Layout], rows: int) -> Locations:
    """For every layer the locations of every row. Layers that share a ledger share its tables of blocks."""
    by_layout = {id(layout): _rows(layout, rows) for layout in {id(layout): layout for layout in layouts}.values()}
    bytes_of = {layout: bytes(locations) for layout, (locations, _) in by_layout.items()}
    whole = b"".join([bytes_of[id(layout)] for layout in layouts])
    locations = (RowLocation * (len(layouts) * rows)).from_buffer_copy(whole)
    return locations, [table for _, tables in by_layout.values() for table in tables]


def extended_locations(rows: Sequence[Sequence[LedgerExtension]], ledgers: Sequence[int]) -> Locations:
    """The same for rows that each have a cache of their own: of every row the extensions of its ledgers.

    ``ledgers``: to which of them each layer belongs.
    """
    own = [[_rows(extension.layout, 1) for extension in row] for row in rows]
    of_ledger = [b"".join([bytes(row[i][0]) for row in own]) for i in range(len(rows[0]))]
    whole = b"".join([of_ledger[i] for i in ledgers])
    locations = (RowLocation * (len(ledgers) * len(rows))).from_buffer_copy(whole)
    return locations, [table for row in own for _, tables in row for table in tables]


def _rows(layout: Layout, rows: int) -> Locations:
    locations, tables = (RowLocation * rows)(), list[object]()
    for b, held in enumerate(layout.held):
        locations[b].held = held
        if layout.blocks is None:
            locations[b].block, locations[b].gone = layout.ring, layout.first
        else:
            table = (c_int32 * len(layout.blocks[b]))(*layout.blocks[b])
            tables.append(table)
            locations[b].blocks = ctypes.addressof(table)
            locations[b].block, locations[b].gone = layout.block, layout.gone[b]
    return locations, tables
