"""What can go wrong, as the client reads it; `api/error_handlers.py` gives each its status.

ServerError
├── InvalidRequest                 the client must change the request
│   ├── ContextLengthExceeded      the prompt does not fit the model's context
│   ├── InsufficientMemory         prompt and answer do not fit the memory beside the model
│   └── UnsupportedParameter       a known field that this model or server does not honour
├── ModelNotFound                  no such name in the catalog
├── RequestNotFound                no such request under way
├── ResponseNotFound               no such response is stored or being written
├── RequestCancelled               somebody else has ended the request
├── EngineOverloaded               the queue is full
├── ModelUnavailable               the server could not serve a model it knows
│   └── ModelLoadFailed            its checkpoint is missing, refused or broken
│       └── ModelTooLarge          it does not fit the memory
├── EngineStopped                  the server is shutting down
└── GenerationFailed               the model raised while it was running

A message says what to change and never repeats what the client sent: routers act on the words
they find in it.
"""

from __future__ import annotations

from collections.abc import Iterable

GIB = 1 << 30


class ServerError(Exception):
    """Base of all errors that reach a client; `type`, `code` and `param` are those of OpenAI's
    error object.
    """

    type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code


class InvalidRequest(ServerError):
    type = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"

    def __init__(
        self,
        num_prompt_tokens: int,
        context_length: int,
        *,
        exact: bool = True,
        param: str = "messages",
    ) -> None:
        count = f"{num_prompt_tokens}" if exact else f"more than {num_prompt_tokens}"
        super().__init__(
            f"This model's context holds {context_length} tokens, but the prompt has {count}. "
            "Shorten the prompt.",
            param=param,
        )


class InsufficientMemory(InvalidRequest):
    code = "insufficient_memory"

    def __init__(
        self,
        num_prompt_tokens: int,
        max_tokens: int | None,
        max_total_tokens: int,
        *,
        param: str,
        also: Iterable[str] = (),
    ) -> None:
        answer = "" if max_tokens is None else f" and up to {max_tokens} for the answer"
        changes = ["shorten the prompt"]
        changes += ["lower max_tokens"] * (max_tokens is not None)
        changes += also
        change = f"{' or '.join(changes)}.".capitalize()
        super().__init__(
            f"Beside this model, memory holds {max_total_tokens} tokens, but the prompt has "
            f"{num_prompt_tokens}{answer}. {change}",
            param=param,
        )


class UnsupportedParameter(InvalidRequest):
    code = "unsupported_parameter"


class ModelNotFound(ServerError):
    type = "invalid_request_error"
    code = "model_not_found"

    def __init__(self) -> None:
        super().__init__(
            "This server has no model of that name; GET /v1/models lists those it has.",
            param="model",
        )


class RequestNotFound(ServerError):
    type = "invalid_request_error"
    code = "request_not_found"

    def __init__(self) -> None:
        super().__init__(
            "No request of that id is under way; GET /v1/requests lists those that are."
        )


class ResponseNotFound(ServerError):
    type = "invalid_request_error"

    def __init__(self) -> None:
        super().__init__(
            "This server has no response of that id; it was not stored or is not kept any more.",
            param="response_id",
        )


class RequestCancelled(ServerError):
    code = "request_cancelled"

    def __init__(self) -> None:
        super().__init__("The request was cancelled with DELETE /v1/requests.")


class EngineOverloaded(ServerError):
    type = "rate_limit_error"
    code = "engine_overloaded"


class ModelUnavailable(ServerError):
    code = "model_unavailable"


class ModelLoadFailed(ModelUnavailable):
    code = "model_load_failed"


class ModelTooLarge(ModelLoadFailed):
    code = "insufficient_memory"

    def __init__(self, needed_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"The model needs {needed_bytes / GIB:.2f} GiB of memory, but this server may use "
            f"{limit_bytes / GIB:.2f} GiB. Choose a smaller or more strongly quantised model, or "
            "start the server with a higher --memory-limit-gb."
        )


class EngineStopped(ServerError):
    code = "engine_stopped"

    def __init__(self, message: str = "The server is shutting down.") -> None:
        super().__init__(message)


class GenerationFailed(ServerError):
    code = "generation_failed"
