"""A model in memory with all that is known of it. Belongs to the MLX thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlx_vlm.models.cache import make_prompt_cache

from mlx_server.config import KVQuantisation
from mlx_server.engine.kv_caches import KVCaches, keep_all_positions
from mlx_server.engine.kv_quantisation import quantised
from mlx_server.engine.sampler_row import SamplingDefaults
from mlx_server.engine.sequence import ChatPrompt, RawPrompt
from mlx_server.engine.token_text import TokenText
from mlx_server.parsers.reasoning import REASONING_FORMATS
from mlx_server.parsers.tools import marks_of

# Families whose image positions and features were seen to survive a prefill that starts behind some
# of the images; the others are prefilled whole whenever a prompt has pictures.
WARM_VISION_TYPES = frozenset({"gemma3", "glm4v", "qwen2_5_vl", "qwen3_vl"})

# Their attention gives all rows of a step the position of the longest.
ONE_POSITION_TYPES = frozenset({"hunyuan_vl", "mllama"})


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """`context_length` bounds prompt and completion together; `vocab_size` is the logits' width.

    Without `can_batch` its KV state is of a kind that only one row at a time can decode with.
    """

    id: str
    model: Any
    processor: Any
    model_type: str
    has_vision: bool
    chat_template: str | None
    context_length: int
    vocab_size: int
    stop_token_ids: frozenset[int]
    defaults: SamplingDefaults
    tool_format: str | None
    token_text: TokenText
    can_batch: bool = True
    kv_quantisation: KVQuantisation | None = None
    reasoning_format: str | None = None

    def marks_of(self, prompt: ChatPrompt | RawPrompt) -> tuple[str, ...]:
        """The texts that have a meaning in an answer, for whoever reads it."""
        if isinstance(prompt, RawPrompt):
            return ()
        reasoning, calls = self.reasoning_format, self.tool_format if prompt.tools else None
        return (
            *(REASONING_FORMATS[reasoning].marks if reasoning is not None else ()),
            *(marks_of(calls) if calls is not None else ()),
        )

    @property
    def takes_one_row(self) -> bool:
        """Whether no row may decode in the company of another."""
        return not self.can_batch or self.model_type in ONE_POSITION_TYPES

    @property
    def language_model(self) -> Any:
        return self.model.language_model

    @property
    def tokenizer(self) -> Any:
        return getattr(self.processor, "tokenizer", self.processor)

    @property
    def image_token_id(self) -> int | None:
        config = self.model.config
        for name in ("image_token_index", "image_token_id"):
            value = getattr(config, name, None)
            if isinstance(value, int):
                return value
        return None

    @property
    def is_warm_vision(self) -> bool:
        return self.model_type in WARM_VISION_TYPES

    def kv_variant(self, num_prompt_tokens: int) -> str:
        """Which kind of KV state a prompt of that length gets."""
        wanted = self.kv_quantisation
        return wanted.variant if wanted and num_prompt_tokens >= wanted.start else ""

    def make_caches(self, variant: str = "") -> KVCaches:
        caches: KVCaches = make_prompt_cache(self.language_model)
        if variant and self.kv_quantisation is not None:
            return quantised(caches, self.kv_quantisation)
        return caches

    @property
    def needs_checkpoints(self) -> bool:
        """Whether some layer cannot go back to an earlier position once it is past it."""
        return not keep_all_positions(self.make_caches())
