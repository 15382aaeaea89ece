"""The wire types of the Responses API: what a request may hold and what answers are made of.

Types and ranges only: what a valid request means is decided in `api/`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import BeforeValidator, Field, model_validator

from mlx_server.models import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TEMPLATE_KWARGS,
    MAX_TOOLS,
    MAX_TOP_LOGPROBS,
    GenerationFields,
    TokenLogprobObject,
)
from mlx_server.wire_base import Flag, TokenLimit, Whole, WireModel, wire_error

MAX_METADATA = 16

SERVED_ITEMS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


def _text_as_parts(value: object) -> object:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if value is None or isinstance(value, list):
        return value
    raise wire_error("must be a string or a list of content parts")


def _text_as_items(value: object) -> object:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if isinstance(value, list):
        return value
    raise wire_error("must be a string or a list of items")


def _mode_as_choice(value: object) -> object:
    return {"type": value} if isinstance(value, str) else value


def _labels(value: object) -> object:
    if (
        not isinstance(value, dict)
        or len(value) > MAX_METADATA
        or not all(isinstance(label, str) for label in value.values())
    ):
        raise wire_error(f"must be an object of at most {MAX_METADATA} strings")
    return value


class ItemPart(WireModel):
    """`text` is how texts are sent to chat completions; in answers it is not used."""

    type: Literal[
        "text",
        "input_text",
        "output_text",
        "reasoning_text",
        "summary_text",
        "refusal",
        "input_image",
        "input_file",
        "input_audio",
    ]
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


Parts = Annotated[
    Annotated[list[ItemPart], Field(max_length=MAX_PARTS)] | None, BeforeValidator(_text_as_parts)
]


class InputItem(WireModel):
    """One item of any type: the fields of the others are None."""

    type: str
    id: str | None = None
    status: ItemStatus | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Parts = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Parts = None
    summary: Parts = None
    encrypted_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _typed(cls, value: object) -> object:
        """The type may be left out where the fields tell it; what is refused for its type need not
        have a form that is known.
        """
        if not isinstance(value, dict):
            return value
        kind = value.get("type")
        if kind is None and "role" in value:
            return {**value, "type": "message"}
        if kind is None and "id" in value:
            return {**value, "type": "item_reference"}
        return value if kind in SERVED_ITEMS else {"type": kind}


class ResponsesTool(WireModel):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Flag | None = None
    defer_loading: Flag | None = None
    allowed_callers: list[str] | None = None
    output_schema: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_the_type_of_others(cls, value: object) -> object:
        if isinstance(value, dict) and value.get("type") != "function":
            return {"type": value.get("type")}
        return value


class AllowedTool(WireModel):
    type: Literal["function"]
    name: str


class ResponsesToolChoice(WireModel):
    """`auto`, `none` and `required` stand in the body without an object around them."""

    type: Literal["auto", "none", "required", "function", "allowed_tools"] = "auto"
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[AllowedTool], Field(max_length=MAX_TOOLS)] | None = None


class TextFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: Flag | None = None


class TextOptions(WireModel):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(WireModel):
    """`summary` may be asked for; answers have the reasoning itself."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class ResponsesRequest(GenerationFields):
    """Nulls have been taken out of the body before it is read.

    The sampling parameters that OpenAI's API lacks, `chat_template_kwargs` and `enable_thinking`
    are those of our chat completions.
    """

    input: Annotated[
        list[InputItem], Field(max_length=MAX_MESSAGES), BeforeValidator(_text_as_items)
    ]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: Flag = True
    text: TextOptions = TextOptions()
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS)] = []
    tool_choice: Annotated[ResponsesToolChoice, BeforeValidator(_mode_as_choice)] = (
        ResponsesToolChoice()
    )
    parallel_tool_calls: Flag = True
    reasoning: ReasoningOptions = ReasoningOptions()
    max_output_tokens: TokenLimit | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    include: list[
        Literal[
            "message.output_text.logprobs",
            "message.input_image.image_url",
            "reasoning.encrypted_content",
        ]
    ] = []
    metadata: Annotated[dict[str, str], BeforeValidator(_labels)] = {}
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_KWARGS)] = {}
    enable_thinking: Flag | None = None


class InputPart(TypedDict):
    type: Literal["input_text", "input_image"]
    text: NotRequired[str]
    image_url: NotRequired[str]
    detail: NotRequired[str]


class OutputTextPart(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprobObject]


class RefusalPart(TypedDict):
    type: Literal["refusal"]
    refusal: str


class ReasoningPart(TypedDict):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class MessageItem(TypedDict):
    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"]
    content: list[InputPart | OutputTextPart | RefusalPart]


class ReasoningItem(TypedDict):
    id: str
    type: Literal["reasoning"]
    summary: list[ReasoningPart]
    content: list[ReasoningPart]
    status: ItemStatus


class CallItem(TypedDict):
    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class CallOutputItem(TypedDict):
    id: str
    type: Literal["function_call_output"]
    status: ItemStatus
    call_id: str
    output: str | list[InputPart]


OutputItem = MessageItem | ReasoningItem | CallItem
Item = OutputItem | CallOutputItem


class InputTokensDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseErrorObject(TypedDict):
    code: str
    message: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class RequestEcho(TypedDict):
    """What a response repeats of its request."""

    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: NotRequired[str]
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"]
    user: NotRequired[str]


class ResponseObject(RequestEcho):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    error: ResponseErrorObject | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]


class EndedResponse(ResponseObject):
    usage: ResponseUsage


class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemList(TypedDict):
    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
