"""The values that cross the engine's border: what is asked of it and what it answers.

Knows neither HTTP nor arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal


class FinishReason(StrEnum):
    """Why a sequence ended; `tool_calls` is not here, since only the parsers know of tools."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen.

    `None` takes the checkpoint's generation_config, then OpenAI's default.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image by `data:` or `http(s):` URL; `param` is its place in the request body, for error
    messages.
    """

    url: str
    param: str


ContentPart = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call in the history; `arguments` is decoded, since templates want the object and not its
    JSON text.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]


Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn in normal form: `developer` is `system`, absent content is no parts."""

    role: Role
    content: tuple[ContentPart, ...] = ()
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, rendered by the model's chat template.

    `tools` are OpenAI tool objects as they were sent. The answer goes on from `prefill`, without
    repeating it. With `add_generation_prompt` the text goes on to where the assistant begins.
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    prefill: str = ""
    add_generation_prompt: bool = True


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A prompt for /v1/completions: text, or token ids that are fed as they are."""

    content: str | tuple[int, ...]
    param: str = "prompt"


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """What an answer must be, behind its reasoning and where it is no tool call.

    `value` is a JSON schema, a regular expression, a grammar in Lark or a sequence of texts.
    """

    kind: Literal["json_schema", "regex", "lark", "choice"]
    value: Any
    param: str = "response_format"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools must be called: `required` any of them, at least once, `named` that one.

    Without `is_parallel`, once at most.
    """

    mode: Literal["auto", "required", "named"] = "auto"
    name: str | None = None
    is_parallel: bool = True


@dataclass(frozen=True, slots=True)
class PromptOnly:
    """What is wanted of a prompt that shall not be answered.

    `add_special_tokens=None` adds the tokenizer's own where an answer would: to raw text alone.
    """

    token_texts: bool = False
    add_special_tokens: bool | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and how to continue it; `n` sequences share the prompt and differ in `index`.

    `model` is the client's name for it, `None` or empty for the one that is loaded.
    `max_tokens=None` goes on to `default_max_tokens`, the server's own limit, and without that one
    to the end of the context. `top_logprobs=None` asks for no logprobs, 0 for those of the chosen
    tokens alone; those of the prompt come with the text of an `echo` if `prompt_logprobs` asks for
    them. `thinking_budget` is how many tokens of reasoning there may be at most. With
    `only_prepare`, the one event that ends the request is its PromptTokens, and `n` is 1.
    """

    request_id: str
    model: str | None
    prompt: ChatPrompt | RawPrompt
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    default_max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    top_logprobs: int | None = None
    echo: bool = False
    response_format: ResponseFormat | None = None
    tool_choice: ToolChoice = ToolChoice()
    thinking_budget: int | None = None
    prompt_logprobs: bool = False
    only_prepare: PromptOnly | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of one token under the model's own distribution, before any sampling
    parameter.
    """

    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of a prompt's tokens; of the first one its bytes alone, for nothing says how likely it is."""

    first: bytes
    others: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """The request is alive but has no text yet.

    `done` and `total` count requests, bytes or tokens by `stage`.
    """

    stage: Literal["queued", "loading", "prefill"]
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Prepared:
    """The prompt is built and can be served: nothing in it is the client's fault."""


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The prompt of a request that wanted nothing else; `token_texts` only if they were asked for.

    There may be more tokens than the model's `context_length`.
    """

    model: str
    context_length: int
    text: str
    token_ids: tuple[int, ...]
    token_texts: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is prefilled: from here on a failure can no longer change the status of the
    answer.

    `tool_format` and `reasoning_format` name what in `parsers` reads this model's calls and its
    reasoning, inside of which it begins if the prompt has opened it (`is_reasoning`); `prompt_text`
    is set for `echo`, and `prompt_logprobs` for `echo` with logprobs.
    """

    model: str
    num_prompt_tokens: int
    num_cached_tokens: int
    tool_format: str | None = None
    prompt_text: str | None = None
    reasoning_format: str | None = None
    is_reasoning: bool = False
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of sequence `index`, without stop strings and half characters, and the logprobs of
    its tokens.

    `num_completion_tokens` counts what the sequence has generated so far, held-back tokens
    included. `stop` is the stop string that ended it, if one did.
    """

    index: int
    text: str
    num_completion_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop: str | None = None


GenerationEvent = Progress | Prepared | PromptTokens | Started | Delta


class SequenceStatus(StrEnum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One of the `n` answers of a request inside the engine; `model` is a catalog id.

    `arrived` and `deadline` are times of the monotonic clock in seconds; after the latter the
    answer is cut. `prompt` is what the runner has made of the request's, once the model is loaded;
    the decoded `images` go when it is there, and `picture_bytes` tells what they have become.
    """

    uid: int
    request: GenerationRequest
    index: int
    model: str
    seed: int
    deadline: float
    arrived: float = 0.0
    images: tuple[Any, ...] = ()
    status: SequenceStatus = SequenceStatus.WAITING
    prompt: Any = None
    picture_bytes: int = 0
    has_images: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_images = bool(self.images)
