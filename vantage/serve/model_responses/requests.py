"""What may be asked of ``/v1/responses``. Fields are refused or taken as those of the other routes are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from vantage.serve import bounds as b
from vantage.serve.bounds import Flag, ModelName, No, Number, Object, StrictModel, Text, User, Whole
from vantage.serve.requests import AsObject, AsText, CallId, MaxTokens, Named

ItemId = Annotated[str, Field(min_length=1, max_length=b.ID_CHARACTERS)]
ItemStatus = Literal["in_progress", "completed", "incomplete"]

# ---- input


class InputTextPart(StrictModel):
    type: Literal["input_text"]
    text: Text


class OutputTextPart(StrictModel):
    """A part of an earlier answer, as it was given."""

    type: Literal["output_text"]
    text: Text
    annotations: Annotated[list[Object], Field(max_length=0)] | None = None
    logprobs: list[Object] | None = None


InputPart = Annotated[InputTextPart | OutputTextPart, Field(discriminator="type")]


class InputMessage(StrictModel):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text | Annotated[list[InputPart], Field(min_length=1, max_length=b.PARTS)]
    id: ItemId | None = None
    status: ItemStatus | None = None
    phase: None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class FunctionCallItem(StrictModel):
    type: Literal["function_call"]
    call_id: CallId
    name: Named
    arguments: Text
    id: ItemId | None = None
    status: ItemStatus | None = None


class FunctionCallOutputItem(StrictModel):
    type: Literal["function_call_output"]
    call_id: CallId
    output: Text | Annotated[list[InputTextPart], Field(min_length=1, max_length=b.PARTS)]
    id: ItemId | None = None
    status: ItemStatus | None = None

    @property
    def text(self) -> str:
        return self.output if isinstance(self.output, str) else "".join(part.text for part in self.output)


def _item_type(item: Any) -> str:
    """A message need not say that it is one."""
    return str(item.get("type", "message")) if isinstance(item, dict) else "message"


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")],
    Discriminator(_item_type),
]

# ---- tools and formats


class FunctionTool(StrictModel):
    type: Literal["function"]
    name: Named
    description: Text | None = None
    parameters: Object | None = None
    strict: Flag | None = None


class ChosenFunctionTool(StrictModel):
    type: Literal["function"]
    name: Named


class NamedSchema(StrictModel):
    type: Literal["json_schema"]
    name: Named
    schema_: Annotated[Object, Field(alias="schema")]
    description: Text | None = None
    strict: Flag | None = None  # answers are always held to the schema


class TextOptions(StrictModel):
    format: Annotated[AsText | AsObject | NamedSchema, Field(discriminator="type")] | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(StrictModel):
    effort: Literal["none"] | None = None
    summary: None = None
    generate_summary: None = None


class ResponseStreamOptions(StrictModel):
    include_obfuscation: No | None = None


MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class ResponseRequest(StrictModel):
    model: ModelName
    input: Text | Annotated[list[InputItem], Field(min_length=1, max_length=b.MESSAGES)]
    instructions: Text | None = None
    previous_response_id: ItemId | None = None
    max_output_tokens: MaxTokens | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=b.TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenFunctionTool | None = None
    parallel_tool_calls: Flag | None = None
    include: Annotated[list[Literal["message.output_text.logprobs"]], Field(max_length=1)] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=b.TOP)] | None = None
    store: Flag | None = None  # default: true
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    stream: Flag | None = None
    stream_options: ResponseStreamOptions | None = None
    user: User | None = None
    # ours
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] | None = None
    top_k: Annotated[Whole, Field(ge=1, le=2**20)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=0.1, le=10)] | None = None
    # only at their neutral value
    background: No | None = None
    conversation: None = None
    max_tool_calls: None = None
    prompt: None = None
    prompt_cache_key: None = None
    prompt_cache_retention: None = None
    reasoning: ReasoningOptions | None = None
    safety_identifier: None = None
    service_tier: Literal["auto", "default"] | None = None
    truncation: Literal["disabled"] | None = None
