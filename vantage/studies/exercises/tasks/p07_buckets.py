"""P7: T5's buckets of distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vantage.position.t5 import t5_bucket
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.words import Mistake, not_a_tensor, unlike

TASK = """\
T5 learns one number for each bucket of distance. Write bucket(distance, bidirectional, buckets, max_distance).
distance is a tensor of whole numbers, key position − query position; return a tensor of the same shape with the
bucket of each.

Let n be the number of buckets on a side. If not bidirectional, n = buckets, only the past counts, and every key
at or after the query (distance ≥ 0) is in bucket 0: use how far back the key lies, max(−distance, 0). If
bidirectional, n = buckets / 2, use |distance|, and keys after the query (distance > 0) get n added to their
bucket.

On a side, distances 0 … n/2 − 1 have a bucket each. From e = n/2 on they grow logarithmically: e +
floor(log(far / e) / log(max_distance / e) · (n − e)), and at most n − 1."""

STARTER = """\
# vantage exercise P7: T5's buckets
import math

import torch


def bucket(distance, bidirectional, buckets, max_distance):
    \"\"\"the bucket of each distance (key position - query position)\"\"\"
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise P7: T5's buckets
import math

import torch


def bucket(distance, bidirectional, buckets, max_distance):
    \"\"\"the bucket of each distance (key position - query position)\"\"\"
    first = torch.zeros_like(distance)
    if bidirectional:
        buckets = buckets // 2
        first = (distance > 0).long() * buckets
        far = distance.abs()
    else:
        far = (-distance).clamp(min=0)
    exact = buckets // 2
    growth = torch.log(far.clamp(min=exact) / exact) / math.log(max_distance / exact)
    large = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(far < exact, far, large)
"""

WORDS = """\
Near distances matter one by one, far ones only roughly: half of a side's buckets hold one distance each, the
other half share the way up to max_distance on a logarithmic scale, and everything beyond lands in the last. The
score then depends on the distance alone, and a distance never seen in training still has a bucket that was. The
sign is easily turned around: with distance = key − query the past is negative."""

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
    "side": "the buckets of the second half are given to the past; keys after the query (distance > 0) get them",
    "both": "distances into the future are treated like the past; when not bidirectional all of them are in bucket 0",
    "not halved": "each side has all the buckets here; bidirectional, each side has half of them",
    "no last": "far distances run past the last bucket: everything from max_distance on shares it (clamp to n − 1)",
    "linear": "every distance has a bucket of its own up to the last; from n/2 on they should grow logarithmically",
    "scale": "the logarithm is of far itself; it is of far / e, where e = n/2 is the first that is not exact",
}


def _check(ask: Ask, distance: Tensor, case: tuple[bool, int, int]) -> str | None:
    bidirectional, buckets, most = case
    got = ask.call("bucket", distance, bidirectional, buckets, most)
    wanted = t5_bucket(distance, bidirectional=bidirectional, buckets=buckets, max_distance=most)
    what = f"bucket(…, bidirectional={bidirectional}, buckets={buckets}, max_distance={most})"
    wrong = not_a_tensor(got, wanted.shape, what)
    if wrong is not None:
        return wrong
    turned = t5_bucket(-distance, bidirectional=bidirectional, buckets=buckets, max_distance=most)
    slips: list[Mistake] = [(turned, "the sign is turned around: distance is key − query, so the past is negative")]
    slips += [(_variant(distance, *case, slip=slip), words) for slip, words in SLIPS.items()]
    told = unlike(got, wanted, what, slips, floats=False, tolerance=1e-6)
    if told is None or not told.startswith(what):
        return told
    at = int((got != wanted).flatten().nonzero()[0])
    where = int(distance.flatten()[at])
    return f"{what} of distance {where} is {got.flatten()[at].item():g}; it should be {int(wanted.flatten()[at])}"


def near(ask: Ask) -> str | None:
    return next((w for case in CASES if (w := _check(ask, torch.arange(-9, 10), case)) is not None), None)


def far(ask: Ask) -> str | None:
    distance = torch.tensor([[-5000, -300, -129, -128, -127, -64, -40], [-20, -17, 17, 40, 127, 128, 5000]])
    return next((w for case in CASES if (w := _check(ask, distance, case)) is not None), None)


def every(ask: Ask) -> str | None:
    return next((w for case in CASES if (w := _check(ask, torch.arange(-200, 201), case)) is not None), None)


EXERCISE = Exercise(
    tag="P7",
    title="T5's buckets of distance",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("bucket",),
    checks=(("near distances", near), ("far distances", far), ("all from −200 to 200", every)),
)
