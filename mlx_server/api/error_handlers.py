"""The status of every error, and the JSON shape in which it leaves, OpenAI's or the path's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from mlx_server import errors
from mlx_server.api.messages_errors import messages_error_response
from mlx_server.api.validation import invalid_field, reason
from mlx_server.messages_wire import is_messages_path
from mlx_server.models import ErrorBody

logger = logging.getLogger(__name__)

# A subclass has the status of its nearest base class here.
STATUS: Mapping[type[errors.ServerError], int] = {
    errors.InvalidRequest: 400,
    errors.ModelNotFound: 404,
    errors.RequestNotFound: 404,
    errors.ResponseNotFound: 404,
    errors.RequestCancelled: 409,
    errors.EngineOverloaded: 429,
    errors.ModelUnavailable: 503,
    errors.EngineStopped: 503,
    errors.GenerationFailed: 500,
    errors.ServerError: 500,
}
HEADERS: Mapping[int, Mapping[str, str]] = {
    # OpenAI's clients take a conflict for one that passes, and would send the request again.
    409: {"x-should-retry": "false"},
    429: {"Retry-After": "1"},
}
MESSAGES: Mapping[int, str] = {
    404: "This server has no such path. Its API is under /v1, as in POST /v1/chat/completions.",
    405: "This path does not take requests of that method.",
}
CLIENT_CLOSED_REQUEST = 499


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(errors.ServerError, answer_server_error)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_exception_handler(RequestValidationError, answer_validation_error)
    app.add_exception_handler(ClientDisconnect, answer_nobody)
    app.add_exception_handler(Exception, answer_unexpected)


def error_body(error: errors.ServerError) -> ErrorBody:
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def status_of(error: errors.ServerError) -> int:
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


def as_server_error(error: BaseException) -> errors.ServerError:
    """The error to show; one that nobody named is logged, and shown without its text."""
    if isinstance(error, errors.ServerError):
        return error
    logger.error("Generation failed unexpectedly", exc_info=error)
    return errors.GenerationFailed(
        "The answer could not be generated; the server's log has the cause."
    )


def error_response(
    request: Request,
    error: errors.ServerError,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    status = status or status_of(error)
    headers = {**HEADERS.get(status, {}), **(headers or {})}
    if is_messages_path(request.scope["path"]):
        return messages_error_response(request, error, status, headers)
    return JSONResponse(error_body(error), status, headers=headers)


async def answer_server_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.ServerError)
    return error_response(request, error)


async def answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = (
        MESSAGES.get(error.status_code) or error.detail or HTTPStatus(error.status_code).phrase
    )
    kind = errors.InvalidRequest if error.status_code < 500 else errors.ServerError
    return error_response(request, kind(message), error.status_code, error.headers)


async def answer_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    # FastAPI puts where the value was ("query", "path", "body") before the name of the field.
    return error_response(request, invalid_field(first["loc"][1:], reason(first)))


async def answer_nobody(request: Request, error: Exception) -> Response:
    """The client has gone; the status is for the access log alone."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def answer_unexpected(request: Request, error: Exception) -> Response:
    failed = errors.ServerError("The server failed; its log has the cause.")
    return error_response(request, failed)
