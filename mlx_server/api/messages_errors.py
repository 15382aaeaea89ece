"""Errors in the shape and with the statuses of Anthropic's API, for the paths of that API."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse

from mlx_server.errors import ServerError
from mlx_server.messages_wire import messages_error

# A full queue is no limit of the client's.
STATUS: Mapping[int, int] = {429: 529}


def messages_error_response(
    request: Request, error: ServerError, status: int, headers: Mapping[str, str]
) -> JSONResponse:
    """`status` and `headers` are those that the error has on other paths."""
    status = messages_status(status)
    body = messages_error(status, message_of(error), request_id_of(request))
    return JSONResponse(body, status, headers=dict(headers))


def messages_status(status: int) -> int:
    return STATUS.get(status, status)


def message_of(error: ServerError) -> str:
    """The shape has no place for the parameter but in the text."""
    if error.param is None or f"`{error.param}`" in error.message:
        return error.message
    return f"{error.param}: {error.message}"


def request_id_of(request: Request) -> str | None:
    return getattr(request.state, "request_id", None)
