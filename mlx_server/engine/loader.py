"""A checkpoint folder -> a LoadedModel.

Opens no network connection and runs none of the checkpoint's own code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_vlm.models.cache import make_prompt_cache
from mlx_vlm.quant_utils import dequantize_model
from mlx_vlm.utils import load_model, resolve_eos_token_ids

from mlx_server.checkpoint import CheckpointFacts, refuse_remote_code
from mlx_server.config import EngineConfig
from mlx_server.engine.device import is_cpu
from mlx_server.engine.kv_caches import can_be_batched
from mlx_server.engine.kv_quantisation import refuse_unless_quantisable
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.processors import Processor, Processors
from mlx_server.engine.sampler_row import SamplingDefaults
from mlx_server.engine.token_text import TokenText
from mlx_server.parsers.harmony_marks import CALL, RETURN
from mlx_server.parsers.reasoning import HARMONY, reasoning_format_of
from mlx_server.parsers.tools import tool_format_of

logger = logging.getLogger(__name__)

UNKNOWN_CONTEXT_LENGTH = 32768

Load = Callable[[str, Path, EngineConfig], LoadedModel]
"""(catalog id, checkpoint folder, settings) -> the model, in memory."""


def load_checkpoint(
    model_id: str, path: Path, config: EngineConfig, processors: Processors | None = None
) -> LoadedModel:
    """Load on the calling thread, which must be the one that runs the model.

    Raises ModelLoadFailed for a checkpoint that would run its own code; anything else that mlx_vlm
    raises on a broken checkpoint passes through.
    """
    facts = CheckpointFacts.read(path)
    refuse_remote_code(facts, config.trust_remote_code)
    model = load_model(path, trust_remote_code=config.trust_remote_code)
    # Every weight had a random value first, which nobody has computed: MLX's key would remember all
    # these draws, and those of all later loads, until somebody asks for it.
    mx.eval(mx.random.state)
    if is_cpu():
        _prepare_for_cpu(model, config.cpu_dtype)
    read = (processors or Processors()).get(path, model, trust_remote_code=config.trust_remote_code)
    return assemble(model_id, model, read, facts, config)


def assemble(
    model_id: str, model: Any, read: Processor, facts: CheckpointFacts, config: EngineConfig
) -> LoadedModel:
    """What the engine must know of a model, from its parts."""
    processor, token_text = read.processor, read.token_text
    tokenizer = getattr(processor, "tokenizer", processor)
    if getattr(processor, "chat_template", None) is None:
        # Gemma 3's processor does not take over its tokenizer's template
        processor.chat_template = facts.chat_template
    chat_template = (
        config.chat_template or facts.chat_template or getattr(tokenizer, "chat_template", None)
    )
    tool_format = tool_format_of(config.tool_call_parser, chat_template, facts.model_type)
    reasoning_format = reasoning_format_of(config.reasoning_parser, chat_template)
    stop_token_ids = _stop_token_ids(model, processor, tokenizer)
    if HARMONY in (tool_format, reasoning_format):
        stop_token_ids |= _ids_of(tokenizer, CALL, RETURN)
    caches = make_prompt_cache(model.language_model)
    if config.kv_quantisation is not None:
        refuse_unless_quantisable(model.language_model, caches, config.kv_quantisation)
    return LoadedModel(
        id=model_id,
        model=model,
        processor=processor,
        model_type=facts.model_type,
        has_vision=facts.has_vision,
        chat_template=chat_template,
        context_length=_context_length(facts, config),
        vocab_size=_vocab_size(model, token_text),
        stop_token_ids=stop_token_ids,
        defaults=_defaults(facts),
        tool_format=tool_format,
        token_text=token_text,
        can_batch=can_be_batched(caches),
        kv_quantisation=config.kv_quantisation,
        reasoning_format=reasoning_format,
    )


def _prepare_for_cpu(model: Any, dtype: str) -> None:
    """A CPU's half-precision and quantised kernels are many times slower than float32 products."""
    if dtype == "checkpoint":
        return
    # scales first: the products of half-precision scales would be rounded before they are widened
    model.set_dtype(getattr(mx, dtype))
    dequantize_model(model)
    mx.eval(model.parameters())
    mx.clear_cache()


def _context_length(facts: CheckpointFacts, config: EngineConfig) -> int:
    length = facts.context_length or UNKNOWN_CONTEXT_LENGTH
    return min(length, config.context_length or length)


def _vocab_size(model: Any, token_text: TokenText) -> int:
    """The logits' width, which may be padded past the tokenizer's last id."""
    text_config = getattr(model.config, "text_config", None)
    for config in (model.config, text_config):
        size = getattr(config, "vocab_size", None)
        if isinstance(size, int) and size > 0:
            return size
    return token_text.vocab_size


def _stop_token_ids(model: Any, processor: Any, tokenizer: Any) -> frozenset[int]:
    """The union of what config, generation_config and tokenizer call the end."""
    configured = resolve_eos_token_ids(getattr(model.config, "eos_token_id", None), tokenizer)
    return frozenset((*configured, *getattr(processor, "additional_eos_token_ids", ())))


def _ids_of(tokenizer: Any, *tokens: str) -> frozenset[int]:
    """Those of the tokens that the vocabulary has."""
    ids = map(tokenizer.backend_tokenizer.token_to_id, tokens)
    return frozenset(token_id for token_id in ids if token_id is not None)


def _defaults(facts: CheckpointFacts) -> SamplingDefaults:
    """OpenAI's values where the checkpoint says nothing; `do_sample: false` asks for greedy."""
    given = {k: v for k, v in facts.generation_defaults.items() if v is not None}
    if given.pop("do_sample", True) is False:
        given["temperature"] = 0.0
    return SamplingDefaults(**given)


def num_weight_bytes(model: Any) -> int:
    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))
