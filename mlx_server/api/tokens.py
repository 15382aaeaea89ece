"""POST /tokenize, /detokenize, /apply-template and the paths in input_tokens: prompts as the model
would see them, without an answer.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

from fastapi import APIRouter, Request, Response

from mlx_server.api.body import JsonObject, read_body
from mlx_server.api.chat import parse_chat
from mlx_server.api.open_requests import OpenRequests
from mlx_server.api.parameters import check_fields
from mlx_server.api.responses import ask, parse_response
from mlx_server.api.responses_answer import name_input
from mlx_server.api.responses_store import ResponseStore
from mlx_server.api.tokens_sink import prompt_of
from mlx_server.api.validation import validate
from mlx_server.api.wire_json import json_response
from mlx_server.engine.sequence import (
    ChatPrompt,
    GenerationRequest,
    PromptOnly,
    PromptTokens,
    RawPrompt,
)
from mlx_server.errors import InvalidRequest, ServerError
from mlx_server.models import ChatCompletionRequest
from mlx_server.tokens_wire import (
    DetokenizeRequest,
    InputTokens,
    PromptAnswer,
    TemplateFields,
    TokenizeAnswer,
    TokenizeRequest,
)

# What other servers know that is not honoured here, with the values that ask for nothing special.
NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "chat_template": (),
    "continue_final_message": (False,),
    "mm_processor_kwargs": ({},),
}


def tokens_router(open_requests: OpenRequests, responses: ResponseStore) -> APIRouter:
    router = APIRouter(tags=["tokens"])

    @router.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        """The tokens of a text or of a conversation."""
        asked, wanted = await read_body(request, parse_tokenize)
        prompt = await prompt_of(asked, request, open_requests, wanted)
        return json_response(tokenize_answer(prompt))

    @router.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        """The text of tokens."""
        asked = await read_body(request, parse_detokenize)
        return json_response(prompt_answer(await prompt_of(asked, request, open_requests)))

    @router.post("/apply-template")
    async def apply_template(request: Request) -> Response:
        """The text that the model's template makes of a conversation."""
        asked = await read_body(request, parse_conversation)
        return json_response(prompt_answer(await prompt_of(asked, request, open_requests)))

    @router.post("/chat/completions/input_tokens")
    async def count_input_tokens(request: Request) -> Response:
        """How many tokens the prompt of a chat completion has."""
        _, asked = await read_body(request, parse_chat)
        return json_response(input_tokens(await prompt_of(asked, request, open_requests)))

    @router.post("/responses/input_tokens")
    async def count_response_tokens(request: Request) -> Response:
        """How many tokens the prompt of a response has."""
        wire = await read_body(request, parse_response)
        asked = (await asyncio.to_thread(ask, wire, responses)).request
        try:
            return json_response(input_tokens(await prompt_of(asked, request, open_requests)))
        except ServerError as error:
            name_input(error)
            raise

    return router


def parse_tokenize(body: JsonObject) -> tuple[GenerationRequest, PromptOnly]:
    known = {**ChatCompletionRequest.model_fields, **TokenizeRequest.model_fields}
    check_fields(body, known, NEUTRAL_VALUES)
    wire = validate(TokenizeRequest, body)
    if (wire.prompt is None) == (wire.messages is None):
        raise InvalidRequest("Send either `prompt` or `messages`.", param="prompt")
    wanted = PromptOnly(wire.return_token_strs, wire.add_special_tokens)
    if wire.prompt is None:
        return parse_conversation(body), wanted
    return raw_request(wire.model, RawPrompt(wire.prompt)), wanted


def parse_detokenize(body: JsonObject) -> GenerationRequest:
    check_fields(body, DetokenizeRequest.model_fields, {})
    wire = validate(DetokenizeRequest, body)
    return raw_request(wire.model, RawPrompt(wire.tokens, "tokens"))


def parse_conversation(body: JsonObject) -> GenerationRequest:
    check_fields(body, body, NEUTRAL_VALUES)
    _, asked = parse_chat(body)
    assert isinstance(asked.prompt, ChatPrompt)
    fields = validate(TemplateFields, body)
    prompt = replace(asked.prompt, add_generation_prompt=fields.add_generation_prompt)
    return replace(asked, prompt=prompt)


def raw_request(model: str | None, prompt: RawPrompt) -> GenerationRequest:
    return GenerationRequest(f"tokens-{uuid.uuid4().hex}", model, prompt)


def tokenize_answer(prompt: PromptTokens) -> TokenizeAnswer:
    answer: TokenizeAnswer = {
        "tokens": list(prompt.token_ids),
        "count": len(prompt.token_ids),
        "max_model_len": prompt.context_length,
    }
    if prompt.token_texts is not None:
        answer["token_strs"] = list(prompt.token_texts)
    return answer


def prompt_answer(prompt: PromptTokens) -> PromptAnswer:
    return {"prompt": prompt.text}


def input_tokens(prompt: PromptTokens) -> InputTokens:
    return {"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)}
