"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the same engine."""

from __future__ import annotations

import uuid
from dataclasses import replace

from fastapi import APIRouter, Request, Response

from mlx_server.api.body import JsonObject, read_body
from mlx_server.api.messages_answer import MessageAnswer, MessageFrames
from mlx_server.api.messages_errors import request_id_of
from mlx_server.api.messages_prompt import messages_prompt
from mlx_server.api.messages_tools import tool_choice
from mlx_server.api.open_requests import OpenRequests
from mlx_server.api.parameters import check_fields
from mlx_server.api.run import run_to_end
from mlx_server.api.sse import start_stream
from mlx_server.api.tokens_sink import prompt_of
from mlx_server.api.validation import Model, validate
from mlx_server.api.wire_json import json_response
from mlx_server.config import ServerConfig
from mlx_server.engine.sequence import GenerationRequest, ResponseFormat, SamplingParams
from mlx_server.errors import InvalidRequest
from mlx_server.messages_wire import CountTokensRequest, MessagesRequest, TokenCount

KEEP_THINKING = "clear_thinking_20251015"
# Fields of the API that are not honoured, with the values that ask for nothing special.
NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "billing_policy": (),
    "compaction": (),
    "container": (),
    # the second form is what a coding client always sends: to keep what is there
    "context_management": (
        {"edits": []},
        {"edits": [{"type": KEEP_THINKING, "keep": "all"}]},
    ),
    "diagnostics": (),
    "fallback_credit_token": (),
    "fallbacks": ("default", []),
    "inference_geo": ("global",),
    "mcp_servers": ([],),
    "speed": ("standard",),
    "thread": (),
}


def messages_router(config: ServerConfig, open_requests: OpenRequests) -> APIRouter:
    router = APIRouter(tags=["messages"])

    @router.post("/messages")
    async def create_message(request: Request) -> Response:
        """Answer a conversation, at once or as a stream of events."""
        wire, asked = await read_body(request, parse_message)
        shows_thinking = wire.thinking is None or wire.thinking.display != "omitted"
        if wire.stream:
            frames = MessageFrames(asked, request_id_of(request), shows_thinking=shows_thinking)
            run = open_requests.begin([asked], frames, request)
            return await start_stream(run, frames, config.heartbeat_s)
        answer = MessageAnswer(asked, shows_thinking=shows_thinking)
        await run_to_end(open_requests.begin([asked], answer, request))
        return json_response(answer.body())

    @router.post("/messages/count_tokens")
    async def count_message_tokens(request: Request) -> Response:
        """How many tokens the prompt of such a message has."""
        asked = await read_body(request, parse_count)
        prompt = await prompt_of(asked, request, open_requests)
        count: TokenCount = {"input_tokens": len(prompt.token_ids)}
        return json_response(count)

    return router


def parse_message(body: JsonObject) -> tuple[MessagesRequest, GenerationRequest]:
    wire = read_fields(body, MessagesRequest)
    asked = replace(
        prompt_request(wire),
        sampling=SamplingParams(temperature=wire.temperature, top_p=wire.top_p, top_k=wire.top_k),
        max_tokens=wire.max_tokens,
        stop=tuple(wire.stop_sequences),
    )
    return wire, asked


def parse_count(body: JsonObject) -> GenerationRequest:
    return prompt_request(read_fields(body, CountTokensRequest))


def prompt_request(wire: CountTokensRequest) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"msg_{uuid.uuid4().hex}",
        model=wire.model,
        prompt=messages_prompt(wire),
        response_format=response_format(wire),
        tool_choice=tool_choice(wire),
        thinking_budget=thinking_budget(wire),
    )


def read_fields(body: JsonObject, model: type[Model]) -> Model:
    check_fields(body, MessagesRequest.model_fields, NEUTRAL_VALUES)
    return validate(model, body, hints={})


def thinking_budget(wire: CountTokensRequest) -> int | None:
    thinking = wire.thinking
    if thinking is None or thinking.type != "enabled":
        return None
    if thinking.budget_tokens is None:
        raise InvalidRequest(
            "`thinking.budget_tokens` is required where thinking is enabled.",
            param="thinking.budget_tokens",
        )
    return thinking.budget_tokens


def response_format(wire: CountTokensRequest) -> ResponseFormat | None:
    if wire.output_config.format is not None:
        schema = wire.output_config.format.json_schema
        return ResponseFormat("json_schema", schema, "output_config.format")
    if wire.output_format is not None:
        return ResponseFormat("json_schema", wire.output_format.json_schema, "output_format")
    return None
