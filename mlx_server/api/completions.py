"""POST /v1/completions: the same engine, with a prompt that no template touches."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Request, Response

from mlx_server.api.body import JsonObject, read_body
from mlx_server.api.completion_answer import CompletionAnswer, CompletionFrames
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
from mlx_server.engine.sequence import GenerationRequest, RawPrompt
from mlx_server.errors import InvalidRequest, UnsupportedParameter
from mlx_server.models import MAX_CHOICES, CompletionRequest


def completions_router(config: ServerConfig, open_requests: OpenRequests) -> APIRouter:
    router = APIRouter(tags=["completions"])

    @router.post("/completions")
    async def create_completion(request: Request) -> Response:
        """Continue one prompt or several, at once or as a stream of chunks."""
        answer_id = f"cmpl-{uuid.uuid4().hex}"
        wire, asked = await read_body(request, lambda body: parse_completion(body, answer_id))
        if wire.stream:
            frames = CompletionFrames(answer_id, asked, stream_usage(wire, config))
            run = open_requests.begin(asked, frames, request)
            return await start_stream(run, frames, config.heartbeat_s)
        answer = CompletionAnswer(answer_id, asked)
        await run_to_end(open_requests.begin(asked, answer, request))
        return json_response(answer.body())

    return router


def parse_completion(
    body: JsonObject, answer_id: str
) -> tuple[CompletionRequest, list[GenerationRequest]]:
    """One GenerationRequest for each prompt of the body."""
    check_fields(body, CompletionRequest.model_fields, NEUTRAL_VALUES)
    wire = validate(CompletionRequest, body)
    check_combinations(wire)
    wanted = response_format(wire)
    requests = [
        GenerationRequest(
            request_id=f"{answer_id}-{i}",
            model=wire.model,
            prompt=RawPrompt(prompt, "prompt" if len(wire.prompt) == 1 else f"prompt.{i}"),
            sampling=sampling_params(wire),
            max_tokens=wire.max_tokens,
            stop=tuple(wire.stop),
            n=wire.n,
            top_logprobs=wire.logprobs,
            echo=wire.echo,
            response_format=wanted,
        )
        for i, prompt in enumerate(wire.prompt)
    ]
    return wire, requests


def check_combinations(wire: CompletionRequest) -> None:
    if wire.echo and wire.logprobs is not None:
        raise UnsupportedParameter(
            "`echo` together with `logprobs` is not supported: leave one of them out.", param="echo"
        )
    if wire.best_of is not None and wire.best_of > wire.n:
        raise UnsupportedParameter("`best_of` above `n` is not supported.", param="best_of")
    if wire.best_of is not None and wire.best_of < wire.n:
        raise InvalidRequest("`best_of` may not be less than `n`.", param="best_of")
    if len(wire.prompt) * wire.n > MAX_CHOICES:
        raise InvalidRequest(
            f"A request may have at most {MAX_CHOICES} choices: prompts times `n`.", param="n"
        )
