"""The wire types of the OpenAI API: what a request may hold and what answers are made of.

Types and ranges only: what a valid request means is decided in `api/`, which turns it into a
GenerationRequest.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import BaseModel, BeforeValidator, Field

from mlx_server.output_wire import (
    ChatToolChoice,
    OutputFormat,
    StructuredOutputs,
    mode_as_object,
)
from mlx_server.wire_base import (
    Flag,
    Penalty,
    Probability,
    Real,
    TokenLimit,
    Whole,
    WireModel,
    wire_error,
)

MAX_CHOICES = 128
MAX_PROMPTS = 128
# More than any context holds; without a bound, a body of tiny entries takes minutes to check.
MAX_MESSAGES = 10_000
MAX_PARTS = 10_000
MAX_TOOLS = 10_000
MAX_TOOL_CALLS = 10_000
MAX_TEMPLATE_KWARGS = 1_000
MAX_STOP_STRINGS = 16
MAX_TOKEN_BIASES = 100_000
MAX_TOP_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 5


def _text_as_part(value: object) -> object:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        return value
    raise wire_error("must be a string or a list of content parts")


def _url_as_object(value: object) -> object:
    return {"url": value} if isinstance(value, str) else value


def _stop_strings(value: object) -> object:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise wire_error("must be a string or a list of strings")
    # An empty stop string would end every answer before its first character.
    return [item for item in strings if item]


def _token_biases(value: object) -> object:
    if not isinstance(value, dict):
        raise wire_error("must be an object of token ids and biases")
    if len(value) > MAX_TOKEN_BIASES:
        raise wire_error(f"may have at most {MAX_TOKEN_BIASES} entries")
    if not all(key.isascii() and key.isdigit() and len(key) < 10 for key in value):
        raise wire_error("must have token ids as its keys")
    if not all(type(bias) in (int, float) and -100 <= bias <= 100 for bias in value.values()):
        raise wire_error("must have numbers from -100 to 100 as its values")
    return {int(key): bias for key, bias in value.items()}


def _call_arguments(value: object) -> object:
    if value is None or isinstance(value, str | dict):
        return value
    raise wire_error("must be a string that holds a JSON object")


def _seed(value: object) -> object:
    # Routers carry seeds as floats, which pushes large ones past 64 bits.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise wire_error("must be a whole number")
    return value % 2**64


def _logprobs_count(value: object) -> object:
    # Routers that know the chat API alone send a boolean here too.
    if isinstance(value, bool):
        return 1 if value else None
    return value


def _token_ids(value: list[Any]) -> tuple[int, ...]:
    if not all(type(token_id) is int and token_id >= 0 for token_id in value):
        raise wire_error("must hold token ids, which are whole numbers from 0")
    return tuple(value)


def _prompts(value: object) -> object:
    """One prompt or several, each a text or token ids: always several from here on."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise wire_error(
            "must be a string, a list of strings, a list of token ids or a list of such lists"
        )
    if not isinstance(value[0], str | list):
        return (_token_ids(value),)
    if len(value) > MAX_PROMPTS:
        raise wire_error(f"may have at most {MAX_PROMPTS} prompts")
    if not all(
        isinstance(prompt, str) or (isinstance(prompt, list) and prompt) for prompt in value
    ):
        raise wire_error("must be a list of strings or of lists of token ids, none of them empty")
    return tuple(prompt if isinstance(prompt, str) else _token_ids(prompt) for prompt in value)


class ImageUrl(WireModel):
    """`detail` only hints at a price: the model's processor alone decides how it sees images."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class Part(WireModel):
    """`input_text` and `input_image` are what the Responses API calls the first two types."""

    type: Literal[
        "text", "image_url", "refusal", "input_audio", "file", "input_text", "input_image"
    ]
    text: str | None = None
    refusal: str | None = None
    image_url: Annotated[ImageUrl, BeforeValidator(_url_as_object)] | None = None


class CalledFunction(WireModel):
    name: str
    arguments: Annotated[Any, BeforeValidator(_call_arguments)] = None


class HistoryCall(WireModel):
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class Message(WireModel):
    """One turn in any form the API allows.

    `reasoning` is what some servers call `reasoning_content`; `function_call` and the role
    `function` are what calls and their results were before there were several of them.
    """

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: (
        Annotated[list[Part], Field(max_length=MAX_PARTS), BeforeValidator(_text_as_part)] | None
    ) = None
    name: str | None = None
    tool_calls: Annotated[list[HistoryCall], Field(max_length=MAX_TOOL_CALLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: dict[str, Any] | None = None
    function_call: CalledFunction | None = None


class Tool(WireModel):
    """`function` stays as it was sent, since templates print it and models saw it in that form."""

    type: Literal["function"]
    function: dict[str, Any]


class StreamOptions(WireModel):
    include_usage: Flag | None = None
    include_obfuscation: Flag | None = None


class GenerationFields(WireModel):
    """What chat and plain completions share.

    Nulls have been taken out of the body before it is read.
    """

    model: str | None = None
    max_tokens: TokenLimit | None = None
    temperature: Annotated[Real, Field(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    min_p: Probability | None = None
    seed: Annotated[int, BeforeValidator(_seed)] | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[Real, Field(gt=0)] | None = None
    logit_bias: Annotated[dict[int, float], BeforeValidator(_token_biases)] = {}
    stop: Annotated[
        list[str], BeforeValidator(_stop_strings), Field(max_length=MAX_STOP_STRINGS)
    ] = []
    n: Annotated[Whole, Field(ge=1, le=MAX_CHOICES)] = 1
    stream: Flag = False
    stream_options: StreamOptions = StreamOptions()


class Thinking(WireModel):
    """How some servers spell `enable_thinking`."""

    type: Literal["enabled", "disabled"]
    budget_tokens: int | None = None


class FormattedFields(GenerationFields):
    response_format: OutputFormat = OutputFormat(type="text")
    structured_outputs: StructuredOutputs | None = None


class ChatCompletionRequest(FormattedFields):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: TokenLimit | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = []
    tool_choice: Annotated[ChatToolChoice, BeforeValidator(mode_as_object)] = ChatToolChoice(
        type="auto"
    )
    parallel_tool_calls: Flag = True
    logprobs: Flag = False
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_KWARGS)] = {}
    enable_thinking: Flag | None = None
    thinking_budget: Annotated[Whole, Field(ge=0)] | None = None
    thinking: Thinking | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )


class CompletionRequest(FormattedFields):
    """`max_tokens` may be 0 only where the prompt is echoed."""

    max_tokens: Annotated[Whole, Field(ge=0)] | None = None
    prompt: Annotated[tuple[str | tuple[int, ...], ...], BeforeValidator(_prompts)]
    logprobs: Annotated[
        Annotated[Whole, Field(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None,
        BeforeValidator(_logprobs_count),
    ] = None
    echo: Flag = False
    best_of: Annotated[Whole, Field(ge=1, le=MAX_CHOICES)] | None = None


class ErrorObject(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    error: ErrorObject


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class TopLogprobObject(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobObject(TopLogprobObject):
    top_logprobs: list[TopLogprobObject]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprobObject]
    refusal: None


class FunctionObject(TypedDict):
    name: str
    arguments: str


class ToolCallObject(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionObject


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallObject]]


class ChatChoice(TypedDict):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class Completion(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage


class ModelObject(BaseModel):
    """OpenAI's model object, and what a client of a local server wants to know besides."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    aliases: list[str]
    state: Literal["ready", "loading", "available", "not_downloaded"]
    capabilities: list[str]
    context_length: int | None


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelObject]


class RequestObject(BaseModel):
    """One request under way; `id` is its answer's, `request_id` that of the header."""

    id: str
    object: Literal["request"] = "request"
    request_id: str
    model: str | None
    state: Literal["queued", "loading", "prefill", "decode"]
    num_prompt_tokens: int | None
    num_completion_tokens: int
    age_s: float


class RequestList(BaseModel):
    object: Literal["list"] = "list"
    data: list[RequestObject]


class DeletedRequest(BaseModel):
    id: str
    object: Literal["request"] = "request"
    deleted: Literal[True] = True


class CacheTier(BaseModel):
    num_entries: int
    num_bytes: int
    max_bytes: int


class CacheObject(BaseModel):
    """The prefix cache: what it holds, and how much of the prompts it has served."""

    object: Literal["cache"] = "cache"
    ram: CacheTier
    disk: CacheTier
    num_lookups: int
    num_hits: int
    num_tokens_asked: int
    num_tokens_cached: int


class DeletedCache(CacheObject):
    deleted: bool
