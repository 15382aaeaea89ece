"""POST /v1/completions: the same engine, with a prompt that no template touches."""

from __future__ import annotations

import asyncio
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
from mlx_server.errors import InvalidRequest
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
        has_logprobs = wire.logprobs is not None
        answer = CompletionAnswer(answer_id, asked, num_best=wire.n, has_logprobs=has_logprobs)
        await run_to_end(open_requests.begin(asked, answer, request))
        if wire.echo and has_logprobs:
            # as many numbers as the prompt has tokens; the loop has streams to serve meanwhile
            return await asyncio.to_thread(lambda: json_response(answer.body()))
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
            n=num_candidates(wire),
            top_logprobs=num_top_logprobs(wire),
            echo=wire.echo,
            response_format=wanted,
            prompt_logprobs=wire.echo and wire.logprobs is not None,
        )
        for i, prompt in enumerate(wire.prompt)
    ]
    return wire, requests


def check_combinations(wire: CompletionRequest) -> None:
    if wire.max_tokens == 0 and not wire.echo:
        raise InvalidRequest(
            "`max_tokens` must be at least 1, but for a prompt that `echo` gives back.",
            param="max_tokens",
        )
    num_rows = num_candidates(wire)
    if num_rows < wire.n:
        raise InvalidRequest("`best_of` may not be less than `n`.", param="best_of")
    if num_rows > wire.n and wire.stream:
        raise InvalidRequest(
            "`best_of` above `n` cannot be streamed: leave `stream` out.", param="best_of"
        )
    if len(wire.prompt) * num_rows > MAX_CHOICES:
        name = "n" if wire.best_of is None else "best_of"
        raise InvalidRequest(
            f"A request may have at most {MAX_CHOICES} choices: prompts times `{name}`.",
            param=name,
        )


def num_candidates(wire: CompletionRequest) -> int:
    """How many answers each prompt gets, of which the `n` best are given back."""
    return wire.n if wire.best_of is None else wire.best_of


def num_top_logprobs(wire: CompletionRequest) -> int | None:
    """Those of the chosen tokens are needed to find the best answers."""
    return 0 if wire.logprobs is None and num_candidates(wire) > wire.n else wire.logprobs
