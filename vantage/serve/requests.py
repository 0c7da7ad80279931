"""What may be asked, as pydantic models: the OpenAPI description is made from these.

Fields of OpenAI's that would change the answer in a way we cannot are taken at their neutral value
only. Whatever is not named here is refused.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from vantage.serve import bounds as b
from vantage.serve.bounds import Flag, ModelName, No, Number, Object, StrictModel, Text, Token, User, Whole

# ---- messages


class TextPart(StrictModel):
    type: Literal["text"]
    text: Text


class ImageUrl(StrictModel):
    url: Text  # a data: URL: nothing is fetched
    detail: Literal["auto"] | None = None


class ImagePart(StrictModel):
    type: Literal["image_url"]
    image_url: ImageUrl


Content = Text | Annotated[list[TextPart], Field(min_length=1, max_length=b.PARTS)]
Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]
UserContent = Text | Annotated[list[Part], Field(min_length=1, max_length=b.PARTS)]
Named = Annotated[str, Field(pattern=b.NAME)]
CallId = Annotated[str, Field(min_length=1, max_length=b.ID_CHARACTERS)]


class SystemMessage(StrictModel):
    role: Literal["system", "developer"]
    content: Content
    name: Named | None = None


class UserMessage(StrictModel):
    role: Literal["user"]
    content: UserContent
    name: Named | None = None


class CalledFunction(StrictModel):
    name: Named
    arguments: Text


class ToolCall(StrictModel):
    id: CallId
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(StrictModel):
    role: Literal["assistant"]
    content: Content | None = None
    name: Named | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=b.CALLS)] | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[str], Field(max_length=0)] | None = None


class ToolMessage(StrictModel):
    role: Literal["tool"]
    content: Content
    tool_call_id: CallId


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
Messages = Annotated[list[Message], Field(min_length=1, max_length=b.MESSAGES)]

# ---- tools and formats


class Function(StrictModel):
    name: Named
    description: Text | None = None
    parameters: Object | None = None
    strict: Flag | None = None


class Tool(StrictModel):
    type: Literal["function"]
    function: Function


class ChosenFunction(StrictModel):
    name: Named


class ChosenTool(StrictModel):
    type: Literal["function"]
    function: ChosenFunction


class AsText(StrictModel):
    type: Literal["text"]


class AsObject(StrictModel):
    type: Literal["json_object"]


class Schema(StrictModel):
    name: Named
    description: Text | None = None
    schema_: Annotated[Object, Field(alias="schema", default_factory=dict)]
    strict: Flag | None = None  # answers are always held to the schema


class AsSchema(StrictModel):
    type: Literal["json_schema"]
    json_schema: Schema


ResponseFormat = Annotated[AsText | AsObject | AsSchema, Field(discriminator="type")]


Regex = Annotated[str, Field(min_length=1, max_length=b.REGEX_CHARACTERS)]
Choice = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=b.STOP_CHARACTERS)]], Field(min_length=1, max_length=b.CHOICES)
]
SchemaOrText = Object | Annotated[str, Field(max_length=b.TEXT)]  # a JSON schema, as it is or written as JSON


class StructuredOutputs(StrictModel):
    """vLLM's name for what an answer is held to: one of these."""

    json_: Annotated[SchemaOrText | None, Field(alias="json")] = None
    json_object: Flag | None = None
    regex: Regex | None = None
    choice: Choice | None = None


class StreamOptions(StrictModel):
    include_usage: Flag | None = None
    include_obfuscation: No | None = None


# ---- what is asked

Stops = Annotated[str, Field(min_length=1, max_length=b.STOP_CHARACTERS)]
Penalty = Annotated[Number, Field(ge=-2, le=2)]
BiasKey = Annotated[str, Field(pattern=b.TOKEN_KEY)]
Bias = Annotated[dict[BiasKey, Annotated[Number, Field(ge=-100, le=100)]], Field(max_length=b.BIASES)]
MaxTokens = Annotated[Whole, Field(ge=1, le=b.TOKENS)]


class Generates(StrictModel):
    """What chats and completions have in common."""

    model: ModelName
    n: Annotated[Whole, Field(ge=1, le=b.N)] | None = None
    stop: Stops | Annotated[list[Stops], Field(max_length=b.STOPS)] | None = None
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Bias | None = None
    max_tokens: MaxTokens | None = None
    stream: Flag | None = None
    stream_options: StreamOptions | None = None
    user: User | None = None
    response_format: ResponseFormat | None = None
    # ours
    top_k: Annotated[Whole, Field(ge=1, le=2**20)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=0.1, le=10)] | None = None
    regex: Regex | None = None
    # as vLLM spells them
    guided_json: SchemaOrText | None = None
    guided_regex: Regex | None = None
    guided_choice: Choice | None = None
    structured_outputs: StructuredOutputs | None = None


class ChatRequest(Generates):
    messages: Messages
    max_completion_tokens: MaxTokens | None = None
    logprobs: Flag | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=b.TOP)] | None = None
    tools: Annotated[list[Tool], Field(max_length=b.TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: Flag | None = None
    # only at their neutral value
    audio: None = None
    function_call: None = None
    functions: None = None
    metadata: Annotated[dict[str, str], Field(max_length=0)] | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    prediction: None = None
    prompt_cache_key: None = None
    prompt_cache_retention: None = None
    reasoning_effort: Literal["none"] | None = None
    safety_identifier: None = None
    service_tier: Literal["auto", "default"] | None = None
    store: No | None = None
    verbosity: Literal["medium"] | None = None
    web_search_options: None = None


TokenPrompt = Annotated[list[Token], Field(min_length=1, max_length=b.TOKENS)]


class CompletionRequest(Generates):
    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=b.PROMPTS)]
        | TokenPrompt
        | Annotated[list[TokenPrompt], Field(min_length=1, max_length=b.PROMPTS)]
    )
    logprobs: Annotated[Whole, Field(ge=0, le=b.TOP)] | None = None
    echo: Flag | None = None  # the prompt before the answer; with logprobs, its scores too
    max_tokens: Annotated[Whole, Field(ge=0, le=b.TOKENS)] | None = None  # 0: the echo alone
    # only at their neutral value
    best_of: Annotated[Whole, Field(ge=1, le=1)] | None = None
    suffix: None = None


class EmbeddingRequest(StrictModel):
    model: ModelName
    input: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=b.INPUTS)]
        | TokenPrompt
        | Annotated[list[TokenPrompt], Field(min_length=1, max_length=b.INPUTS)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[Whole, Field(ge=1, le=2**20)] | None = None  # only the model's own width
    user: User | None = None


class TokenizeRequest(StrictModel):
    """``prompt`` or ``messages``. Special tokens spelled in a prompt are plain text unless ``parse_special``."""

    model: ModelName
    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: Flag = True
    parse_special: Flag = False


class DetokenizeRequest(StrictModel):
    model: ModelName
    tokens: Annotated[list[Token], Field(max_length=b.TOKENS)]
    skip_special_tokens: Flag = False


Indices = Annotated[list[Annotated[Whole, Field(ge=0, lt=b.TOKENS)]], Field(min_length=1, max_length=b.INDICES)]


class AttentionRequest(StrictModel):
    """``id``: of a chat or completion that has finished. What is not chosen is all there is."""

    id: Annotated[str, Field(min_length=1, max_length=b.ID_CHARACTERS)]
    choice: Annotated[Whole, Field(ge=0, lt=b.N * b.PROMPTS)] | None = None
    kinds: Annotated[list[Literal["self", "cross", "encoder"]], Field(min_length=1, max_length=3)] | None = None
    layers: Indices | None = None
    heads: Indices | None = None
    queries: Indices | None = None
    keep: Annotated[str, Field(pattern=b.KEEP)] | None = None  # default: top8
