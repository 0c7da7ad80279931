"""P7: T5's buckets of distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vantage.position.t5 import t5_bucket
from vantage.studies.exercises.differences import Mistake, check_tensor, compare_tensors
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


CASES = ((True, 32, 128), (False, 32, 128), (True, 8, 20), (False, 8, 20), (False, 16, 64))


def _variant(distance: Tensor, bidirectional: bool, buckets: int, most: int, *, slip: str) -> Tensor:
    """The rule with one slip in it."""
    first = torch.zeros_like(distance)
    if bidirectional:
        buckets = buckets if slip == "not halved" else buckets // 2
        side = distance < 0 if slip == "side" else distance > 0
        first = side.long() * buckets
        far = distance.abs()
    else:
        far = distance.abs() if slip == "both" else (-distance).clamp_min(0)
    exact = buckets // 2
    growth = torch.log(far.clamp_min(exact).float() / exact) / math.log(most / exact)
    if slip == "scale":
        growth = torch.log(far.clamp_min(1).float()) / math.log(most)
    large = exact + (growth * (buckets - exact)).long()
    large = large if slip == "no last" else large.clamp_max(buckets - 1)
    return first + torch.where(far < exact, far, far.clamp_max(buckets - 1) if slip == "linear" else large)


SLIPS = {
    "side": TEXT.feedback("past and future swapped"),
    "both": TEXT.feedback("future like the past"),
    "not halved": TEXT.feedback("all buckets on each side"),
    "no last": TEXT.feedback("past the last bucket"),
    "linear": TEXT.feedback("no logarithm"),
    "scale": TEXT.feedback("logarithm of far"),
}


def _check(student: StudentCode, distance: Tensor, case: tuple[bool, int, int]) -> str | None:
    bidirectional, buckets, most = case
    got = student.call("bucket", distance, bidirectional, buckets, most)
    wanted = t5_bucket(distance, bidirectional=bidirectional, buckets=buckets, max_distance=most)
    what = f"bucket(…, bidirectional={bidirectional}, buckets={buckets}, max_distance={most})"
    wrong = check_tensor(got, wanted.shape, what)
    if wrong is not None:
        return wrong
    turned = t5_bucket(-distance, bidirectional=bidirectional, buckets=buckets, max_distance=most)
    slips: list[Mistake] = [(turned, TEXT.feedback("sign"))]
    slips += [(_variant(distance, *case, slip=slip), words) for slip, words in SLIPS.items()]
    words = compare_tensors(got, wanted, what, slips, floats=False, tolerance=1e-6)
    if words is None or not words.startswith(what):
        return words
    at = int((got != wanted).flatten().nonzero()[0])
    where = int(distance.flatten()[at])
    return TEXT.feedback(
        "difference", what=what, distance=where, got=got.flatten()[at].item(), wanted=int(wanted.flatten()[at])
    )


def near(student: StudentCode) -> str | None:
    return next((w for case in CASES if (w := _check(student, torch.arange(-9, 10), case)) is not None), None)


def far(student: StudentCode) -> str | None:
    distance = torch.tensor([[-5000, -300, -129, -128, -127, -64, -40], [-20, -17, 17, 40, 127, 128, 5000]])
    return next((w for case in CASES if (w := _check(student, distance, case)) is not None), None)


def every(student: StudentCode) -> str | None:
    return next((w for case in CASES if (w := _check(student, torch.arange(-200, 201), case)) is not None), None)


EXERCISE = TEXT.exercise(
    "P7", ("bucket",), (("near distances", near), ("far distances", far), ("all from −200 to 200", every))
)
