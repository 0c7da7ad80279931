"""How long a step over several devices would take: a prediction, from counted operations and bytes and a few rates.

Nothing here was measured on several devices. Operations, bytes and messages are exact (``cost``, ``mesh_cost``); the
rates of one device were measured, those of links are their makers'. What a step takes lies between the two times that a
prediction gives: all that is sent hidden behind computing, and none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from vantage.inspect.cost import cost
from vantage.inspect.mesh_cost import mesh_cost
from vantage.model import empty_model
from vantage.parallel.parameter_cut import sublayers
from vantage.spec.mesh import MeshShape
from vantage.spec.model import ModelSpec

BACKWARD = 2  # of the forward pass's operations: a product has two gradients


@final
@dataclass(frozen=True)
class DeviceRates:
    """Operations and bytes a second that one device was measured to reach, and a link's bytes a second and seconds
    for the smallest message."""

    name: str
    flops: float
    memory: float
    link: float
    latency: float


# An H200 as it was measured (bfloat16: an 8B prefill of 2,048 tokens, and a product with a vector), over NVLink 4 as
# its maker says (450 GB/s each way), with ten microseconds for a small sum, which is an assumption.
H200 = DeviceRates("H200, NVLink", 505e12, 4.28e12, 450e9, 10e-6)


@final
@dataclass(frozen=True)
class StepTime:
    """Seconds of computing and of sending on each device."""

    computing: float
    sending: float

    @property
    def hidden(self) -> float:
        """All that is sent travels while something is computed."""
        return max(self.computing, self.sending)

    @property
    def exposed(self) -> float:
        """Nothing does."""
        return self.computing + self.sending


def training_time(spec: ModelSpec, mesh: MeshShape, rates: DeviceRates, *, context: int, batch: int = 1) -> StepTime:
    """A forward and a backward pass in bfloat16, the gradients brought together; the optimiser is left out."""
    (forward, *_) = cost(spec, context=context, batch=batch).passes
    divided_by = {"head": mesh.context, "embedding": mesh.context}  # which every tensor share has whole
    of_a_row = mesh.tensor * mesh.context  # ``batch`` counts the rows of a device
    operations = sum(part.needed / divided_by.get(part.name, of_a_row) for part in forward.parts)
    sent = sum(mesh_cost(spec, mesh, context=context, batch=batch).sent["training step"].values())
    return StepTime((1 + BACKWARD) * operations / rates.flops, sent / rates.link)


def decode_time(spec: ModelSpec, mesh: MeshShape, rates: DeviceRates, *, context: int, batch: int = 1) -> StepTime:
    """One more token for each row: every weight and every key is read once, every sublayer is summed."""
    share = mesh_cost(spec, MeshShape(mesh.tensor), context=context, batch=batch)
    read = share.memory["weights"] + share.memory["cache of the whole context"]
    messages = len(sublayers(empty_model(spec))) if mesh.tensor > 1 else 0
    sent = sum(share.sent["decode"].values())
    return StepTime(read / rates.memory, messages * rates.latency + sent / rates.link)


MESHES = (MeshShape(), MeshShape(2), MeshShape(4), MeshShape(8), MeshShape(1, 8), MeshShape(4, 2), MeshShape(8, 4))


def table(spec: ModelSpec, *, context: int, rates: DeviceRates = H200) -> list[str]:
    """Rows of a Markdown table: devices, memory and bytes, and the predicted times of a training and a decode step."""
    rows = []
    for mesh in MESHES:
        bytes_ = mesh_cost(spec, mesh, context=context)
        train, decode = (f(spec, mesh, rates, context=context) for f in (training_time, decode_time))
        sent = sum(bytes_.sent["training step"].values()) / 1e9
        weights = bytes_.memory["weights"] / 1e9
        times = (
            f"{train.hidden:.2f} to {train.exposed:.2f}",
            f"{1e3 * decode.hidden:.2f} to {1e3 * decode.exposed:.2f}",
        )
        cells = (f"{mesh.tensor} × {mesh.context}", f"{weights:.1f}", f"{sent:.2f}", *times)
        rows.append(f"| {' | '.join(cells)} |")
    return rows
