"""Reads the JSON object in a request's body, whatever the client calls its content type."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic_core import from_json
from starlette.requests import Request

from mlx_server.errors import InvalidRequest

T = TypeVar("T")
JsonObject = dict[str, Any]

LARGE_BODY_BYTES = 64 * 1024
# Python makes objects of them without a pause for other threads, seconds for a million. Braces in
# texts count as well, but no prompt with so many fits a context.
MAX_CONTAINERS = 250_000

# Begins where a run of backslashes does, so that an escaped one is never taken for the start of an
# escape. Other escapes are passed over: there may be millions.
SURROGATE = re.compile(
    rb"(?<!\\)(?P<escaped>(?:\\\\)*)\\"
    rb"(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2}))"
)


async def read_body(request: Request, parse: Callable[[JsonObject], T]) -> T:
    """What `parse` makes of the body's JSON object, nulls left out; else an InvalidRequest."""
    refuse_foreign_form(request)
    body = await request.body()
    if len(body) > LARGE_BODY_BYTES:
        # Checking thousands of messages takes a while; the loop has streams to serve meanwhile.
        return await asyncio.to_thread(lambda: parse(decode_object(body)))
    return parse(decode_object(body))


def refuse_foreign_form(request: Request) -> None:
    """Browsers let any page post forms and plain text, but JSON only where CORS allows it."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if not is_json and "origin" in request.headers:
        raise InvalidRequest(
            "Requests from a browser need the header `Content-Type: application/json`."
        )


def decode_object(body: bytes) -> JsonObject:
    if not body.strip():
        raise InvalidRequest("The request body is empty; send a JSON object.")
    if body.count(b"{") + body.count(b"[") > MAX_CONTAINERS:
        raise InvalidRequest(
            f"The request body may have at most {MAX_CONTAINERS} objects and lists."
        )
    try:
        value = decode_json(body.removeprefix(b"\xef\xbb\xbf"))
    except ValueError:
        raise InvalidRequest("The request body is not valid JSON in UTF-8.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    return {name: field for name, field in value.items() if field is not None}


def decode_json(text: bytes) -> Any:
    """Raises ValueError; the value has no lone surrogates, which no tokenizer can take."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return from_json(replace_lone_surrogates(text), allow_inf_nan=False)


def replace_lone_surrogates(body: bytes) -> bytes:
    r"""Half a character, as editors that cut text by UTF-16 units send it, becomes U+FFFD."""
    return SURROGATE.sub(
        lambda match: match["escaped"] + rb"\ufffd" if match["lone"] else match[0], body
    )
