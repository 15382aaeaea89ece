"""The parameters that chat and plain completions share: honoured, or refused by name."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from mlx_server.api.body import JsonObject
from mlx_server.api.sse import StreamUsage
from mlx_server.config import ServerConfig
from mlx_server.engine.sequence import SamplingParams
from mlx_server.errors import UnsupportedParameter
from mlx_server.models import GenerationFields

logger = logging.getLogger(__name__)

# Labels and hints: no value of theirs changes an answer.
INERT = frozenset(
    {
        "metadata",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
    }
)

# Fields of the API that are not honoured, with the values that ask for nothing special and may
# therefore stand.
NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def check_fields(
    body: JsonObject, known: Mapping[str, Any], neutral: Mapping[str, tuple[object, ...]]
) -> None:
    """Raise UnsupportedParameter for the first field that asks for what this server cannot do."""
    for name, value in body.items():
        if name in neutral and value not in neutral[name]:
            raise unsupported(name, neutral[name])
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_obfuscation"):
        raise unsupported("stream_options.include_obfuscation", (False,))
    unknown = body.keys() - known.keys() - neutral.keys() - INERT
    if unknown and logger.isEnabledFor(logging.DEBUG):
        logger.debug("Ignored unknown fields of the request: %r", sorted(unknown))


def unsupported(param: str, neutral: tuple[object, ...] = ()) -> UnsupportedParameter:
    if not neutral:
        return UnsupportedParameter(
            f"`{param}` is not supported by this server; leave it out.", param=param
        )
    allowed = " or ".join(json.dumps(value) for value in neutral)
    return UnsupportedParameter(
        f"`{param}` is supported only as {allowed}; or leave it out.", param=param
    )


def sampling_params(wire: GenerationFields) -> SamplingParams:
    return SamplingParams(
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=None if wire.top_k is None else max(wire.top_k, 0),
        min_p=wire.min_p,
        seed=wire.seed,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        repetition_penalty=wire.repetition_penalty,
        logit_bias=wire.logit_bias,
    )


def stream_usage(wire: GenerationFields, config: ServerConfig) -> StreamUsage:
    is_asked_for = bool(wire.stream_options.include_usage)
    return StreamUsage(is_asked_for, is_asked_for or config.always_include_usage)
