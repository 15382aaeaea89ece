"""POST /v1/responses: OpenAI's Responses API over the same engine."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence

from fastapi import APIRouter, Request, Response

from mlx_server.api.body import JsonObject, read_body
from mlx_server.api.chat_prompt import template_kwargs
from mlx_server.api.open_requests import OpenRequests
from mlx_server.api.parameters import check_fields, sampling_params, unsupported
from mlx_server.api.responses_answer import (
    AskedResponse,
    ResponseAnswer,
    ResponseFrames,
    name_input,
)
from mlx_server.api.responses_echo import request_echo
from mlx_server.api.responses_input import gather, item_object
from mlx_server.api.responses_prompt import Conversation, PlacedItem
from mlx_server.api.responses_store import ResponseStore, StoredResponse
from mlx_server.api.responses_tools import response_format, shown_tools, tool_choice
from mlx_server.api.run import run_to_end
from mlx_server.api.sse import start_stream
from mlx_server.api.validation import validate
from mlx_server.api.wire_json import json_response
from mlx_server.config import ServerConfig
from mlx_server.engine.sequence import ChatPrompt, GenerationRequest
from mlx_server.errors import InvalidRequest, ServerError
from mlx_server.models import ChatCompletionRequest
from mlx_server.responses_wire import ResponsesRequest

# Fields that are not honoured, with the values that ask for nothing special: those of this API and
# those of others that it has under another name.
NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logprobs": (False,),
    "max_completion_tokens": (),
    "max_tokens": (),
    "max_tool_calls": (),
    "messages": (),
    "moderation": (),
    "n": (1,),
    "prompt": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
}


def responses_router(
    config: ServerConfig, open_requests: OpenRequests, store: ResponseStore
) -> APIRouter:
    router = APIRouter(tags=["responses"])

    async def keep(answer: ResponseAnswer | ResponseFrames) -> None:
        await keep_response(answer, store)

    @router.post("/responses")
    async def create_response(request: Request) -> Response:
        """Answer a conversation, at once or as a stream of events."""
        wire = await read_body(request, parse_response)
        asked = await asyncio.to_thread(ask, wire, store)
        try:
            if wire.stream:
                frames = ResponseFrames(asked, keep)
                run = open_requests.begin([asked.request], frames, request)
                return await start_stream(run, frames, config.heartbeat_s)
            answer = ResponseAnswer(asked)
            await run_to_end(open_requests.begin([asked.request], answer, request))
        except ServerError as error:
            name_input(error)
            raise
        await keep(answer)
        return json_response(answer.body())

    return router


async def keep_response(answer: ResponseAnswer | ResponseFrames, store: ResponseStore) -> None:
    """Store the response as it is, if its request wants that."""
    asked = answer.response.asked
    if asked.echo["store"]:
        await asyncio.to_thread(store.put, StoredResponse(answer.body(), asked.input))


def parse_response(body: JsonObject) -> ResponsesRequest:
    check_fields(body, ResponsesRequest.model_fields, NEUTRAL_VALUES)
    wire = validate(ResponsesRequest, body)
    if wire.text.verbosity not in (None, "medium"):
        raise unsupported("text.verbosity", ("medium",))
    return wire


def ask(wire: ResponsesRequest, store: ResponseStore) -> AskedResponse:
    """Looks up what the request refers to, so it blocks."""
    gathered = gather(wire, store)
    request = GenerationRequest(
        request_id=f"resp_{uuid.uuid4().hex}",
        model=wire.model,
        prompt=chat_prompt(wire, gathered.items),
        sampling=sampling_params(wire),
        max_tokens=wire.max_output_tokens,
        stop=tuple(wire.stop),
        top_logprobs=num_top_logprobs(wire),
        response_format=response_format(wire),
        tool_choice=tool_choice(wire),
    )
    own_input = tuple(item_object(placed.item) for placed in gathered.own)
    return AskedResponse(request, request_echo(wire), own_input)


def chat_prompt(wire: ResponsesRequest, items: Sequence[PlacedItem]) -> ChatPrompt:
    conversation = Conversation(wire.instructions)
    for placed in items:
        conversation.add(placed)
    if not items:
        raise InvalidRequest("`input` must have at least one item.", param="input")
    # how much to think is told to templates as chat completions tell it
    chat = ChatCompletionRequest.model_construct(
        chat_template_kwargs=wire.chat_template_kwargs,
        enable_thinking=wire.enable_thinking,
        reasoning_effort=wire.reasoning.effort,
    )
    return ChatPrompt(conversation.messages(), shown_tools(wire), template_kwargs(chat))


def num_top_logprobs(wire: ResponsesRequest) -> int | None:
    if wire.top_logprobs or "message.output_text.logprobs" in wire.include:
        return wire.top_logprobs or 0
    return None
