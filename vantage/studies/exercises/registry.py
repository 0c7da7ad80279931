"""All exercises, by tag."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType

from vantage.studies.exercises.exercise import Exercise
from vantage.studies.exercises.tasks import (
    a02_context,
    a04_attention,
    a05_mask,
    a06_heads,
    a07_repeat,
    a09_heat_maps,
    a10_temperature,
    a12_average,
    a15_receptive,
    k01_projections,
    k02_step,
    k03_worked,
    k05_bytes,
    p01_equivariance,
    p02_table,
    p07_buckets,
    p08_rope,
    p10_alibi,
    p11_nope,
)

MODULES = (
    *(a02_context, a04_attention, a05_mask, a06_heads, a07_repeat, a09_heat_maps, a10_temperature, a12_average),
    *(a15_receptive, p01_equivariance, p02_table, p07_buckets, p08_rope, p10_alibi, p11_nope),
    *(k01_projections, k02_step, k03_worked, k05_bytes),
)


def exercises() -> dict[str, Exercise]:
    """Every exercise by its tag, in the order of the documents."""
    return dict(_all())


@cache
def _all() -> MappingProxyType[str, Exercise]:
    found = [module.EXERCISE for module in MODULES]
    found.insert(found.index(p10_alibi.EXERCISE) + 1, p10_alibi.SLOPES)
    return MappingProxyType({exercise.tag: exercise for exercise in found})
