"""One function for each family; each writes a checkpoint folder and returns it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tiny.templates import CHATML, GEMMA3, GLM
from tests.tiny.tokenizer import write_json, write_tokenizer
from tests.tiny.weights import write_weights

CHATML_SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
GLM_SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|image|>",
    "<|video|>",
]
GEMMA_SPECIAL = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
]
CHATML_TOKENS = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHATML}
TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
}


def tiny_llama(folder: Path, *, seed: int = 7, head_dim: int = 16, min_vocab_size: int = 0) -> Path:
    """A plain decoder: every layer keeps all of its keys and values."""
    folder.mkdir(parents=True)
    vocab_size = write_tokenizer(folder, CHATML_SPECIAL, CHATML_TOKENS)
    config = {
        **TEXT,
        "head_dim": head_dim,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": max(vocab_size, min_vocab_size),
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": [2, 0],
    }
    return finish(folder, config, {"eos_token_id": [2, 0]}, seed)


def tiny_qwen3_next(folder: Path) -> Path:
    """A hybrid: three of four layers keep a recurrent state that cannot go back."""
    folder.mkdir(parents=True)
    vocab_size = write_tokenizer(folder, CHATML_SPECIAL, CHATML_TOKENS)
    config = {
        **TEXT,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "vocab_size": vocab_size,
        "full_attention_interval": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 64,
        "moe_intermediate_size": 64,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": [2, 0],
    }
    return finish(folder, config, {"eos_token_id": [2, 0]}, 7)


def tiny_falcon_h1(folder: Path) -> Path:
    """A hybrid whose layers keep two caches each: a recurrent state and all keys and values."""
    folder.mkdir(parents=True)
    vocab_size = write_tokenizer(folder, CHATML_SPECIAL, CHATML_TOKENS)
    config = {
        **TEXT,
        "num_hidden_layers": 2,
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "vocab_size": vocab_size,
        "mamba_d_conv": 4,
        "mamba_d_head": 16,
        "mamba_d_ssm": 64,
        "mamba_d_state": 16,
        "mamba_n_heads": 4,
        "lm_head_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": [2, 0],
    }
    return finish(folder, config, {"eos_token_id": [2, 0]}, 7)


def tiny_gemma3(folder: Path, *, sliding_window: int = 64, head_dim: int = 16) -> Path:
    """Vision, and sliding-window layers between full ones."""
    folder.mkdir(parents=True)
    vocab_size = write_tokenizer(
        folder,
        GEMMA_SPECIAL,
        {
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "extra_special_tokens": {
                "boi_token": "<start_of_image>",
                "eoi_token": "<end_of_image>",
                "image_token": "<image_soft_token>",
            },
            "processor_class": "Gemma3Processor",
            "chat_template": GEMMA3,
        },
    )
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "boi_token_index": 6,
        "eoi_token_index": 7,
        "image_token_index": 8,
        "mm_tokens_per_image": 4,
        "bos_token_id": 2,
        "eos_token_id": [1, 5],
        "pad_token_id": 0,
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "text_config": {
            **TEXT,
            "head_dim": head_dim,
            "model_type": "gemma3_text",
            "query_pre_attn_scalar": 16,
            "sliding_window": sliding_window,
            "sliding_window_pattern": 2,
            "vocab_size": vocab_size,
            "mm_tokens_per_image": 4,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "patch_size": 14,
            "image_size": 56,
        },
    }
    write_json(
        folder,
        "preprocessor_config.json",
        {
            "image_processor_type": "Gemma3ImageProcessor",
            "processor_class": "Gemma3Processor",
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
            "image_seq_length": 4,
            "resample": 2,
            "rescale_factor": 1 / 255,
            "size": {"height": 56, "width": 56},
        },
    )
    processor = {"image_seq_length": 4, "processor_class": "Gemma3Processor"}
    write_json(folder, "processor_config.json", processor)
    return finish(folder, config, {"eos_token_id": [1, 5]}, 7)


def tiny_qwen3_vl(folder: Path) -> Path:
    """Vision with positions in three dimensions, and fewer of them than an image has tokens."""
    folder.mkdir(parents=True)
    vocab_size = write_tokenizer(
        folder, CHATML_SPECIAL, {**CHATML_TOKENS, "processor_class": "Qwen3VLProcessor"}
    )
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "vision_start_token_id": 3,
        "vision_end_token_id": 4,
        "vision_token_id": 5,
        "image_token_id": 6,
        "video_token_id": 7,
        "eos_token_id": [2, 0],
        "pad_token_id": 0,
        "vocab_size": vocab_size,
        "tie_word_embeddings": True,
        "text_config": {
            **TEXT,
            "model_type": "qwen3_vl_text",
            "rope_theta": 5000000.0,
            "rope_scaling": {
                "rope_type": "default",
                "mrope_interleaved": True,
                "mrope_section": [4, 2, 2],
            },
            "tie_word_embeddings": True,
            "vocab_size": vocab_size,
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "out_hidden_size": 64,
            "num_heads": 4,
            "patch_size": 16,
            "in_channels": 3,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
    }
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        write_json(
            folder,
            name,
            {
                "image_processor_type": "Qwen2VLImageProcessorFast",
                "processor_class": "Qwen3VLProcessor",
                "size": {"shortest_edge": 1024, "longest_edge": 65536},
                "patch_size": 16,
                "temporal_patch_size": 2,
                "merge_size": 2,
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
            },
        )
    return finish(folder, config, {"eos_token_id": [2, 0]}, 7)


def tiny_qwen2_5_vl(folder: Path) -> Path:
    """Vision whose language model keeps the positions of a prompt unless it is told them."""
    folder.mkdir(parents=True)
    vocab_size = write_tokenizer(
        folder, CHATML_SPECIAL, {**CHATML_TOKENS, "processor_class": "Qwen2_5_VLProcessor"}
    )
    config = {
        **{name: value for name, value in TEXT.items() if name != "head_dim"},
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "vision_start_token_id": 3,
        "vision_end_token_id": 4,
        "vision_token_id": 5,
        "image_token_id": 6,
        "video_token_id": 7,
        "eos_token_id": [2, 0],
        "pad_token_id": 0,
        "vocab_size": vocab_size,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "tie_word_embeddings": True,
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "out_hidden_size": 64,
            "num_heads": 4,
            "patch_size": 14,
            "in_channels": 3,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
    }
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        write_json(
            folder,
            name,
            {
                "image_processor_type": "Qwen2VLImageProcessorFast",
                "processor_class": "Qwen2_5_VLProcessor",
                "size": {"shortest_edge": 784, "longest_edge": 50176},
                "patch_size": 14,
                "temporal_patch_size": 2,
                "merge_size": 2,
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
            },
        )
    return finish(folder, config, {"eos_token_id": [2, 0]}, 7)


def tiny_glm4v(folder: Path) -> Path:
    """Vision that leaves the positions of a prompt with the language model instead of giving them
    back.
    """
    folder.mkdir(parents=True)
    vocab_size = write_tokenizer(
        folder,
        GLM_SPECIAL,
        {**CHATML_TOKENS, "processor_class": "Glm4vProcessor", "chat_template": GLM},
    )
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3]}
    config = {
        "architectures": ["Glm4vForConditionalGeneration"],
        "model_type": "glm4v",
        "vision_start_token_id": 3,
        "vision_end_token_id": 4,
        "image_token_id": 5,
        "image_token_index": 5,
        "video_token_id": 6,
        "video_token_index": 6,
        "eos_token_id": [2, 0],
        "pad_token_id": 0,
        "vocab_size": vocab_size,
        "text_config": {
            **{name: value for name, value in TEXT.items() if name != "head_dim"},
            "model_type": "glm4v_text",
            "rope_theta": 10000.0,
            "rope_scaling": rope,
            "partial_rotary_factor": 1.0,
            "vocab_size": vocab_size,
            "eos_token_id": [2, 0],
            "pad_token_id": 0,
        },
        "vision_config": {
            "model_type": "glm4v",
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "out_hidden_size": 64,
            "num_heads": 4,
            "patch_size": 14,
            "image_size": 56,
            "in_channels": 3,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }
    write_json(
        folder,
        "preprocessor_config.json",
        {
            "image_processor_type": "Glm4vImageProcessor",
            "processor_class": "Glm4vProcessor",
            "size": {"shortest_edge": 784, "longest_edge": 50176},
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        },
    )
    return finish(folder, config, {"eos_token_id": [2, 0]}, 7)


def finish(folder: Path, config: dict[str, Any], generation: dict[str, Any], seed: int) -> Path:
    """Write what every family has beside its tokenizer."""
    write_json(folder, "config.json", config)
    write_json(folder, "generation_config.json", generation)
    write_weights(folder, config, seed=seed)
    return folder
