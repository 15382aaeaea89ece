"""POST /v1/chat/completions."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Request, Response

from mlx_server.api.body import JsonObject, read_body
from mlx_server.api.chat_answer import ChatAnswer, ChatFrames
from mlx_server.api.chat_prompt import chat_prompt
from mlx_server.api.chat_tools import tool_choice
from mlx_server.api.open_requests import OpenRequests
from mlx_server.api.output_format import response_format
from mlx_server.api.parameters import (
    NEUTRAL_VALUES,
    check_fields,
    sampling_params,
    stream_usage,
)
from mlx_server.api.run import run_to_end
from mlx_server.api.sse import start_stream
from mlx_server.api.validation import validate
from mlx_server.api.wire_json import json_response
from mlx_server.config import ServerConfig
from mlx_server.engine.sequence import GenerationRequest
from mlx_server.errors import InvalidRequest
from mlx_server.models import ChatCompletionRequest


def chat_router(config: ServerConfig, open_requests: OpenRequests) -> APIRouter:
    router = APIRouter(tags=["chat"])

    @router.post("/chat/completions")
    async def create_chat_completion(request: Request) -> Response:
        """Answer a conversation, at once or as a stream of chunks."""
        wire, asked = await read_body(request, parse_chat)
        if wire.stream:
            frames = ChatFrames(asked, stream_usage(wire, config))
            run = open_requests.begin([asked], frames, request)
            return await start_stream(run, frames, config.heartbeat_s)
        answer = ChatAnswer(asked)
        await run_to_end(open_requests.begin([asked], answer, request))
        return json_response(answer.body())

    return router


def parse_chat(body: JsonObject) -> tuple[ChatCompletionRequest, GenerationRequest]:
    if "messages" not in body and "message" in body:
        raise InvalidRequest(
            "`messages` is missing. It is a list of messages; a field `message` is not read.",
            param="messages",
        )
    check_fields(body, ChatCompletionRequest.model_fields, NEUTRAL_VALUES)
    wire = validate(ChatCompletionRequest, body)
    asked = GenerationRequest(
        request_id=f"chatcmpl-{uuid.uuid4().hex}",
        model=wire.model,
        prompt=chat_prompt(wire),
        sampling=sampling_params(wire),
        max_tokens=wire.max_completion_tokens or wire.max_tokens,
        stop=tuple(wire.stop),
        n=wire.n,
        top_logprobs=num_top_logprobs(wire),
        response_format=response_format(wire),
        tool_choice=tool_choice(wire),
        thinking_budget=thinking_budget(wire),
    )
    return wire, asked


def thinking_budget(wire: ChatCompletionRequest) -> int | None:
    if wire.thinking_budget is None and wire.thinking is not None:
        return wire.thinking.budget_tokens
    return wire.thinking_budget


def num_top_logprobs(wire: ChatCompletionRequest) -> int | None:
    if wire.logprobs:
        return wire.top_logprobs or 0
    if wire.top_logprobs:
        raise InvalidRequest("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
    return None
