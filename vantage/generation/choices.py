"""What a sample goes on with: its next token, the text that became certain with it, and whether it was the last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from vantage.errors import Refused
from vantage.generation.running_samples import RunningSample
from vantage.generation.sampling import Pick


@final
@dataclass(frozen=True)
class NextToken:
    """``error``: why there is no token. It is the request's own fault, or its logits were no numbers."""

    pick: Pick
    text: str = ""
    finish: str | None = None  # "stop" or "length"
    ended_by: str | None = None  # as ``AnswerText`` has it
    error: Exception | None = None


NO_PICK = Pick(-1, float("nan"))


def choose_each(samples: Sequence[RunningSample], logits_BV: Tensor) -> Iterator[NextToken]:
    """One after another: whoever is interrupted has chosen for those before, and for no one else."""
    for sample, logits_V in zip(samples, logits_BV, strict=True):
        yield _chosen(sample, logits_V)


def _chosen(sample: RunningSample, logits_V: Tensor) -> NextToken:
    try:
        pick = sample.picker.pick(logits_V)
    except Exception as e:
        return NextToken(NO_PICK, error=e)
    return take_pick(sample, pick)


def take_pick(sample: RunningSample, pick: Pick, *, fine: bool = True) -> NextToken:
    """This token has come: what it makes of the answer. ``fine``: it was chosen from numbers."""
    try:
        if not fine:
            raise Refused("the model's logits are not finite: its weights or its input are damaged")
        sample.picker.took(pick.token)
        sample.text.push(pick.token)
        return NextToken(pick, sample.text.take(), sample.text.finish, sample.text.ended_by)
    except Exception as e:
        return NextToken(NO_PICK, error=e)
