"""What is kept: the keys and values of one layer, in the form and the precision that a codec gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from vantage.cache.codecs import Codec, GroupCodec, StreamShape, token_bytes
from vantage.cache.dump import damaged
from vantage.cache.grouped import Grouped
from vantage.cache.ledger import Ledger, Step
from vantage.cache.memory import copy_places, zeros
from vantage.cache.moves import BlockCopies, Copied, Packing, Scatter
from vantage.cache.running import as_kept
from vantage.errors import BadInput, CacheError
from vantage.spec.positions import Positions

MODULES = "modules"  # a path: module by module


@final
class Store:
    """The buffers of one layer: one for each of the codec's streams, arranged as the ledger wants them.

    ``streams`` stand beside them as they are: what else the layer keeps of each token. Where a codec keeps groups of
    tokens together, those that are in none yet have buffers of their own, whatever the length of a row.
    """

    def __init__(self, codec: Codec, ledger: Ledger, streams: tuple[StreamShape, ...] = ()):
        self.codec, self.streams = codec, streams
        self.pooled = ledger.pooled
        self._device = ledger.device
        rows = () if self.pooled else (ledger.batch,)
        self._buffers = [
            self._zeros((*rows, s.heads or codec.kv_heads, ledger.places, s.width), s.dtype)
            for s in (*codec.streams(), *streams)
        ]
        self._newest = self._exact_buffers(codec, ledger)
        self._places = ledger.places
        self.written = 0  # tokens whose keys were projected and kept here, by every cache that shares this store
        self.paths: dict[str, int] = {}  # those tokens by who computed them: the modules, or a kernel of its own
        self.version = 0  # how often the buffers have become other ones
        self._last: Step | None = None  # the last step written
        self._waiting: tuple[Step, tuple[Tensor, ...]] | None = None  # a deferred write

    @property
    def bytes(self) -> int:
        """What its tensors take. A pool is counted whole, whoever else uses it."""
        waiting = self._waiting[1] if self._waiting else ()
        return sum(t.nbytes for t in (*self._buffers, *self._newest, *waiting))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self._buffers, *self._newest)

    @property
    def token_bytes(self) -> int:
        """What is kept of one token."""
        return token_bytes(self.codec, self.streams)

    def check(self, rows: int, width: int, k_BGTd: Tensor, v_BGTe: Tensor, streams: Sequence[Tensor] = ()) -> None:
        """Raises if these keys, values and streams cannot be kept here."""
        codec = self.codec
        lead = (rows, codec.kv_heads, width)
        if k_BGTd.shape != (*lead, codec.key_dim) or v_BGTe.shape != (*lead, codec.value_dim):
            raise BadInput(
                f"keys {tuple(k_BGTd.shape)} and values {tuple(v_BGTe.shape)} for a cache that takes "
                f"{(*lead, codec.key_dim)} and {(*lead, codec.value_dim)}: (rows, key/value heads, tokens, width)"
            )
        wanted = [(rows, s.heads or codec.kv_heads, width, s.width) for s in self.streams]
        if wanted != [tuple(x.shape) for x in streams]:
            raise BadInput(f"streams {[tuple(x.shape) for x in streams]} for a cache that takes {wanted}")
        if (k_BGTd.requires_grad or v_BGTe.requires_grad) and torch.is_grad_enabled():
            raise BadInput("a cache keeps no gradients: use torch.no_grad() with a cache, or no cache to train")

    def enter(self, step: Step, tokens: int, path: str) -> list[Tensor]:
        """The buffers, with room for a pass of so many tokens, for a kernel that writes into them itself.

        Of a write that waits: copies of what the pass sees, with room for what it brings.
        """
        buffers = self._open(step)
        self._count(tokens, path)
        if step.deferred:
            width = tokens // buffers[0].shape[0]
            brought = [buffer.new_empty((*buffer.shape[:2], width, buffer.shape[3])) for buffer in buffers]
            copies = [step.read.get(buffer, x) for buffer, x in zip(buffers, brought, strict=True)]
            self._waiting = step, tuple(copy.narrow(2, copy.shape[2] - width, width) for copy in copies)
            return copies
        if isinstance(step.write, Copied):
            for buffer in buffers:
                step.write.copies.run(buffer)
        return buffers

    def extend(self, places: int, copies: BlockCopies | None, tokens: int, path: str) -> None:
        """Room for so many tokens that a kernel will write, outside any pass."""
        self.reserve(places)
        self._count(tokens, path)
        if copies is not None:
            for buffer in self._buffers:
                copies.run(buffer)

    def reserve(self, places: int) -> None:
        """Have so many places, so that what comes next finds the buffers where they will be."""
        if self._waiting is not None:
            self.settle()
        if places > self._places:
            self._grow(places)

    def _open(self, step: Step) -> list[Tensor]:
        if step is self._last:
            raise CacheError("these positions were appended here before: make new Positions for every pass")
        assert step.write is not None, "a step that only looks cannot write"
        self.reserve(step.places)
        self._last = step
        return self._buffers

    def write(
        self, step: Step, k_BGTd: Tensor, v_BGTe: Tensor, streams: Sequence[Tensor] = (), pos: Positions | None = None
    ) -> tuple[Tensor, ...]:
        """Take in what a pass brings; return the streams as they are kept. Running ones need ``pos``."""
        self._open(step)
        assert step.write is not None
        own = self._sums(step, streams, pos) if self.streams else ()
        self._count(k_BGTd.shape[0] * k_BGTd.shape[2], MODULES)
        if step.packing is not None:
            self._pack(step.packing, k_BGTd, v_BGTe)
            for buffer, x in zip(self._beside, own, strict=True):
                step.write.put(buffer, x)
            return own
        entries = (*self.codec.encode(k_BGTd, v_BGTe), *own)
        if step.deferred:
            self._waiting = (step, entries)
        else:
            for buffer, x in zip(self._buffers, entries, strict=True):
                step.write.put(buffer, x)
        return own

    @property
    def _beside(self) -> list[Tensor]:
        """The buffers of the streams."""
        return self._buffers[len(self._buffers) - len(self.streams) :]

    def _pack(self, packing: Packing, k_BGTd: Tensor, v_BGTe: Tensor) -> None:
        """Keep what the pass brings as it is, and pack the group that is due."""
        assert packing.exact is not None
        exact = self.codec.exact
        for buffer, x in zip(self._newest, exact.encode(k_BGTd, v_BGTe), strict=True):
            Scatter(packing.exact).put(buffer, x)
        if packing.group is None or packing.into is None:
            return
        index = packing.group[:, None, :, None]
        group = [b.gather(2, index.expand(-1, b.shape[1], -1, b.shape[3])) for b in self._newest]
        for buffer, x in zip(self._buffers, self.codec.encode(*exact.decode(group)), strict=False):  # not the streams
            Scatter(packing.into).put(buffer, x)

    def _with_newest(self, packing: Packing, k_BGSd: Tensor, v_BGSe: Tensor) -> tuple[Tensor, Tensor]:
        """What was read packed where it is packed, and as it came elsewhere."""
        place = torch.arange(k_BGSd.shape[2], device=k_BGSd.device)
        exact = self.codec.exact.decode([buffer.index_select(2, place % packing.turns) for buffer in self._newest])
        packed = (place < packing.packed[:, None])[:, None, :, None]
        return torch.where(packed, k_BGSd, exact[0]), torch.where(packed, v_BGSe, exact[1])

    def _count(self, tokens: int, path: str) -> None:
        self.written += tokens
        self.paths[path] = self.paths.get(path, 0) + tokens

    def _sums(self, step: Step, streams: Sequence[Tensor], pos: Positions | None) -> tuple[Tensor, ...]:
        if isinstance(step.write, Copied):  # the sum before may stand in a block that moves with this write
            for buffer, shape in zip(self._beside, self.streams, strict=True):
                if shape.running:
                    step.write.copies.run(buffer)
        return as_kept(streams, self.streams, self._beside, step.read, pos, step.view_pos)

    def read(self, step: Step) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """What a step shows: keys, values and streams."""
        waiting: Sequence[Tensor | None] = (None,) * len(self._buffers)
        if self._waiting is not None:
            if self._waiting[0] is step:
                waiting = self._waiting[1]
            else:
                self.settle()
        shown = [step.read.get(buffer, x) for buffer, x in zip(self._buffers, waiting, strict=True)]
        cut = len(shown) - len(self.streams)
        k, v = self.codec.decode(shown[:cut])
        if step.packing is not None:
            k, v = self._with_newest(step.packing, k, v)
        return k, v, tuple(shown[cut:])

    def settle(self) -> None:
        """Do the write that waits, unless its pass failed."""
        if self._waiting is None:
            return
        step, streams = self._waiting
        self._waiting = None
        if not step.void and step.write is not None:
            for buffer, x in zip(self._buffers, streams, strict=True):
                step.write.put(buffer, x)

    def dump(self, places: Tensor | int) -> list[Tensor]:
        """These places of every buffer, or so many from the front, in host memory."""
        self.settle()
        if isinstance(places, int):
            front = [buffer.narrow(2, 0, places).contiguous().cpu() for buffer in self._buffers]
            return [*front, *(buffer.cpu() for buffer in self._newest)]
        return [buffer.index_select(-2, places.to(buffer.device)).cpu() for buffer in self._buffers]

    def load(self, streams: Sequence[Tensor], places: Tensor | int) -> None:
        """Put there what ``dump`` gave; raises ``CheckpointError`` where that does not fit."""
        n = places if isinstance(places, int) else len(places)
        sizes = [n] * len(self._buffers) + [buffer.shape[2] for buffer in self._newest]
        for buffer, stream, n in zip(self.tensors, streams, sizes, strict=True):
            wanted = (*buffer.shape[:-2], n, buffer.shape[-1])
            if tuple(stream.shape) != wanted or stream.dtype != buffer.dtype:
                damaged(f"a tensor of {tuple(stream.shape)} in {stream.dtype} stands for {wanted} in {buffer.dtype}")
            if isinstance(places, int):
                buffer.narrow(2, 0, n).copy_(stream)
            else:
                buffer.index_copy_(-2, places.to(buffer.device), stream.to(buffer.device))

    def fork(self, ledger: Ledger) -> Store:
        """The same for a forked ledger. A pool is shared: its ledgers know who uses what."""
        if self.pooled:
            return self
        self.settle()
        other = Store(self.codec, ledger, self.streams)
        other._fill(self._buffers, ledger.used)
        for mine, newest in zip(other._newest, self._newest, strict=True):
            mine.copy_(newest)
        return other

    def fresh(self, ledger: Ledger) -> Store:
        """An empty one for a fresh ledger."""
        return self if self.pooled else Store(self.codec, ledger, self.streams)

    def reorder(self, index: Sequence[int], used: int) -> None:
        """Row i becomes what row index[i] was. Only the first ``used`` places hold anything."""
        if self.pooled:
            return
        self.settle()
        rows = torch.tensor(index, device=self._device)
        old = self._buffers
        self.version += 1
        self._buffers = [self._zeros((len(index), *buffer.shape[1:]), buffer.dtype) for buffer in old]
        self._fill([buffer.narrow(2, 0, used).index_select(0, rows) for buffer in old], used)
        self._newest = [buffer.index_select(0, rows) for buffer in self._newest]

    def _fill(self, source: Sequence[Tensor], used: int) -> None:
        for mine, other in zip(self._buffers, source, strict=True):
            mine.narrow(2, 0, used).copy_(other.narrow(2, 0, used))

    def _grow(self, places: int) -> None:
        old, self._buffers = self._buffers, []
        self.version += 1
        for buffer in old:
            wide = self._zeros((*buffer.shape[:-2], places, buffer.shape[-1]), buffer.dtype)
            copy_places(wide, buffer)
            self._buffers.append(wide)
        self._places = places

    def _exact_buffers(self, codec: Codec, ledger: Ledger) -> list[Tensor]:
        """Of the tokens that are in no group yet; none where there are no groups."""
        group = codec.group if isinstance(codec, GroupCodec) else None
        if group != (ledger.grouping.size if isinstance(ledger, Grouped) and codec.kv_heads else None):
            raise BadInput(f"{codec} cannot be kept in a cache that is {ledger.name}")
        if group is None or not isinstance(ledger, Grouped):
            return []
        places = ledger.exact_places + 1  # one more, which nobody reads, for what is not kept
        return [self._zeros((ledger.batch, codec.kv_heads, places, s.width), s.dtype) for s in codec.exact.streams()]

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        # zeros, since an empty place is read with weight 0 and must not be NaN; and not an
        # inference tensor, which could not be written outside inference mode
        with torch.inference_mode(False):
            return zeros(shape, dtype, self._device)
