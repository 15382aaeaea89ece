"""The wire types of Anthropic's Messages API: requests, answers and errors.

Types and ranges only: what a valid request means is decided in `api/`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import BeforeValidator, Field, model_validator

from mlx_server.models import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOP_STRINGS,
    MAX_TEMPLATE_KWARGS,
    MAX_TOOLS,
)
from mlx_server.wire_base import Flag, Probability, TokenLimit, Whole, WireModel, wire_error

BlockType = Literal[
    "text",
    "image",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "document",
    "search_result",
    "tool_reference",
    "browser_state",
    "container_upload",
    "compaction",
    "fallback",
    "tool_addition",
    "tool_removal",
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "advisor_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "mcp_tool_use",
    "mcp_tool_result",
    "mcp_tool_listing",
]
SERVED_BLOCKS = frozenset(
    {"text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result"}
)


def _text_as_block(value: object) -> object:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        return value
    raise wire_error("must be a string or a list of content blocks")


def _stop_sequences(value: object) -> object:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise wire_error("must be a list of strings")
    # An empty stop string would end every answer before its first character.
    return [item for item in value if item]


class CacheControl(WireModel):
    """A hint: every prompt is cached, and for as long as there is room."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Source(WireModel):
    type: Literal["base64", "url", "file"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"] | None = None
    data: str | None = None
    url: str | None = None


class Transformations(WireModel):
    oversized_image: Literal["downsize", "error"] | None = None


class BlockFields(WireModel):
    """What can stand in a turn and in the result of a tool."""

    type: BlockType
    cache_control: CacheControl | None = None
    text: str | None = None
    source: Source | None = None
    transformations: Transformations | None = None

    @property
    def is_served(self) -> bool:
        return self.type in SERVED_BLOCKS

    @model_validator(mode="before")
    @classmethod
    def _only_the_type_of_others(cls, value: object) -> object:
        """What is refused for its type need not have a form that is known."""
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            return value if value["type"] in SERVED_BLOCKS else {"type": value["type"]}
        return value


Blocks = Annotated[list[BlockFields], Field(max_length=MAX_PARTS), BeforeValidator(_text_as_block)]


class Block(BlockFields):
    """One block of a turn, of any type: the fields of the others are None."""

    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Blocks | None = None
    is_error: Flag | None = None


class Turn(WireModel):
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], Field(max_length=MAX_PARTS), BeforeValidator(_text_as_block)]


class MessagesTool(WireModel):
    """`type` is absent or `custom` for what the client runs itself."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: Flag | None = None
    cache_control: CacheControl | None = None
    defer_loading: Flag | None = None
    allowed_callers: list[str] | None = None
    input_examples: list[Any] | None = None
    eager_input_streaming: Flag | None = None


class MessagesToolChoice(WireModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: Flag | None = None


class Thinking(WireModel):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: TokenLimit | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(WireModel):
    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(WireModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(WireModel):
    """What makes up a prompt; nulls have been taken out of the body before it is read.

    `chat_template_kwargs` is no field of Anthropic's: it is that of our chat completions.
    """

    model: str | None = None
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Blocks = []
    tools: Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS)] = []
    tool_choice: MessagesToolChoice = MessagesToolChoice(type="auto")
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()
    output_format: OutputFormat | None = None
    cache_control: CacheControl | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_KWARGS)] = {}


class MessagesRequest(CountTokensRequest):
    max_tokens: TokenLimit
    stop_sequences: Annotated[
        list[str], BeforeValidator(_stop_sequences), Field(max_length=MAX_STOP_STRINGS)
    ] = []
    stream: Flag = False
    temperature: Probability | None = None
    top_p: Probability | None = None
    top_k: Annotated[Whole, Field(ge=0)] | None = None
    service_tier: Literal["auto", "standard_only"] = "auto"


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str


class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class OutputTokensDetails(TypedDict):
    thinking_tokens: int


class MessagesUsage(TypedDict):
    """`input_tokens` are those that were neither read from a cache nor written to one."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: NotRequired[OutputTokensDetails]
    service_tier: NotRequired[Literal["standard"]]


class MessageObject(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class TokenCount(TypedDict):
    input_tokens: int


class MessagesErrorObject(TypedDict):
    type: str
    message: str


class MessagesErrorBody(TypedDict):
    type: Literal["error"]
    error: MessagesErrorObject
    request_id: str | None


ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def is_messages_path(path: str) -> bool:
    """Whether what is answered there has this API's forms, under /v1 or not."""
    first, _, rest = path.lstrip("/").partition("/")
    name = rest.partition("/")[0] if first == "v1" else first
    return name == "messages"


def messages_error(status: int, message: str, request_id: str | None) -> MessagesErrorBody:
    kind = ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request_id,
    }
