"""The most of everything that one request may ask for. A number stands here once; docs/serving.md lists them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, AllowInfNan, BaseModel, ConfigDict, Field, Strict, WithJsonSchema

N = 16  # samples of a prompt
PROMPTS = 16  # prompts of one call to /v1/completions
STOPS, STOP_CHARACTERS = 4, 256
CHOICES = 1024  # texts that an answer may be one of
BIASES = 1024  # entries of logit_bias
TOP = 20  # log-probabilities beside the chosen token's
TOKENS = 2**20  # the most that max_tokens may say; the model's context is nearly always less
MESSAGES, PARTS, TOOLS, CALLS = 1024, 64, 64, 64
IMAGES, IMAGE_PIXELS = 16, 2**24  # of one request; of one image, decoded
INDICES = 1024  # layers, heads or queries of one call to /v1/attention
INPUTS, INPUT_TOKENS = 256, 65_536  # of one call to /v1/embeddings
NAME = r"^[a-zA-Z0-9_-]{1,64}$"
MODEL_CHARACTERS, ID_CHARACTERS, USER_CHARACTERS = 256, 128, 512
TEXT = 2**24  # characters; the limit on bodies is reached first, this one is for those who raise it
REGEX_CHARACTERS = 8_192
TOKEN_KEY = r"^[0-9]{1,9}$"
KEEP = r"^(weights|stats|top[1-9][0-9]{0,2})$"
FALSE = {"type": "boolean", "const": False}

Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), AllowInfNan(False)]
Flag = Annotated[bool, Strict()]
No = Annotated[bool, Strict(), AfterValidator(lambda flag: _no(flag)), WithJsonSchema(FALSE)]
Text = Annotated[str, Strict(), Field(max_length=TEXT)]
Token = Annotated[int, Strict(), Field(ge=0, lt=2**31)]
ModelName = Annotated[str, Strict(), Field(min_length=1, max_length=MODEL_CHARACTERS)]
User = Annotated[str, Strict(), Field(max_length=USER_CHARACTERS)]
Object = dict[str, Any]  # a JSON schema or a call's arguments: read by those who check it


def _no(flag: bool) -> bool:
    """``Literal[False]`` would take 0 as well."""
    if flag:
        raise ValueError("false")  # as in: "store is true, and must be false"
    return flag


class StrictModel(BaseModel):
    """Unknown fields are refused, and nothing is taken for what it is not."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)
