"""Values as JSON, both ways. Nothing that comes in a message can run code: no pickle, a fixed set of types."""

from __future__ import annotations

import base64
import json
import math
import socket
import struct
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

MOST_FRAME_BYTES = 32 * 2**20
MOST_TENSOR_BYTES = 8 * 2**20
MOST_ITEMS = 100_000
MOST_DEPTH = 16
MOST_DIMENSIONS = 12
MOST_CHARACTERS = 100_000  # of a text

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


class Unsendable(ValueError):
    """A value that a message cannot carry."""


class UnknownValue:
    """What stands for a value of a type that messages do not know."""

    def __init__(self, kind: str):
        self.kind = kind


def pack(value: Any, depth: int = 0) -> Any:
    """``value`` as plain JSON. A type that is not known goes over by its name alone."""
    if depth > MOST_DEPTH:
        raise Unsendable(f"it is nested more than {MOST_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    if type(value) is int:
        if abs(value) >= 2**200:
            raise Unsendable("it holds a whole number of more than 60 digits")
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) is str:
        return value[:MOST_CHARACTERS]
    if isinstance(value, Tensor):
        return {"tensor": _bytes(value)}
    if isinstance(value, numpy.ndarray | numpy.generic):
        return _numpy(value)
    if isinstance(value, list | tuple | set | frozenset):
        if len(value) > MOST_ITEMS:
            raise Unsendable(f"it holds a {type(value).__name__} of {len(value):,} things; {MOST_ITEMS:,} are the most")
        kind = "list" if isinstance(value, list) else "tuple" if isinstance(value, tuple) else "set"
        return {kind: [pack(item, depth + 1) for item in value]}
    if isinstance(value, dict) and len(value) <= MOST_ITEMS:
        return {"dict": [[pack(key, depth + 1), pack(item, depth + 1)] for key, item in value.items()]}
    return {"other": type(value).__name__[:80]}


def _numpy(value: Any) -> Any:
    try:
        return {"array": _bytes(torch.as_tensor(numpy.asarray(value)))}
    except TypeError:
        return {"other": f"NumPy array of {value.dtype}"[:80]}


def _bytes(value: Tensor) -> list[Any]:
    name = str(value.dtype).removeprefix("torch.")
    if name not in DTYPES or value.layout != torch.strided or value.device.type not in ("cpu", "cuda", "mps"):
        raise Unsendable(f"it holds a tensor of {name}, {value.layout}, on {value.device}: use a plain one on the CPU")
    if value.numel() * value.element_size() > MOST_TENSOR_BYTES:
        raise Unsendable(f"it holds a tensor of shape {tuple(value.shape)}: that is far larger than anything asked for")
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return [name, list(value.shape), base64.b64encode(flat.numpy().tobytes()).decode()]


def unpack(data: Any, call: Callable[[Any], Any] | None = None) -> Any:
    """The value again. ``call`` makes a function of {"call": …}; without it there are none."""
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if not isinstance(data, dict) or len(data) != 1:
        raise Unsendable("a message that is not one of ours")
    kind, content = next(iter(data.items()))
    if kind == "float":
        return float(content)
    if kind == "tensor":
        return _tensor(content)
    if kind == "array":
        return _tensor(content).numpy()
    if kind == "list":
        return [unpack(item, call) for item in content]
    if kind == "tuple":
        return tuple(unpack(item, call) for item in content)
    if kind == "set":
        return frozenset(unpack(item, call) for item in content)
    if kind == "dict":
        return {unpack(key, call): unpack(item, call) for key, item in content}
    if kind == "call" and call is not None:
        return call(content)
    if kind == "other":
        return UnknownValue(str(content)[:80])
    raise Unsendable("a message that is not one of ours")


def _tensor(content: Any) -> Tensor:
    name, shape, text = content
    dtype = DTYPES[name]
    if len(shape) > MOST_DIMENSIONS or not all(type(n) is int and 0 <= n <= 2**31 for n in shape):
        raise Unsendable(f"a tensor of shape {str(shape)[:80]}")
    raw = base64.b64decode(text, validate=True)
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise Unsendable("a tensor whose numbers do not fill its shape")
    if not raw:
        return torch.zeros(0, dtype=dtype).reshape(shape)
    if dtype == torch.bool and max(raw) > 1:
        raise Unsendable("a truth value that is neither")
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape).clone()


def frame(message: Any) -> bytes:
    raw = json.dumps(message, allow_nan=False).encode()
    if len(raw) > MOST_FRAME_BYTES:
        raise Unsendable(f"{len(raw):,} bytes in one message; {MOST_FRAME_BYTES:,} are the most")
    return struct.pack(">I", len(raw)) + raw


def receive(channel: socket.socket) -> Any:
    """One message, waited for. None: the other side is gone."""
    header = _exactly(channel, 4)
    if header is None:
        return None
    (length,) = struct.unpack(">I", header)
    raw = _exactly(channel, length)
    return None if raw is None else json.loads(raw)


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    received = bytearray()
    while len(received) < count:
        part = channel.recv(min(count - len(received), 2**20))
        if not part:
            return None
        received += part
    return bytes(received)
