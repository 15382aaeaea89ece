"""Families whose attention knows one position for all rows of a step; for prompts of text only."""

from __future__ import annotations

from pathlib import Path

from tests.tiny.checkpoints import CHATML_SPECIAL, CHATML_TOKENS, TEXT, finish
from tests.tiny.tokenizer import write_json, write_tokenizer


def tiny_hunyuan_vl(folder: Path) -> Path:
    """Its processor takes its tokens for those of the real tokenizer, so it sees nothing."""
    folder.mkdir(parents=True)
    vocab_size = write_tokenizer(folder, CHATML_SPECIAL, CHATML_TOKENS)
    rope = {"type": "xdrope", "alpha": 1000.0, "factor": 1.0, "xdrope_section": [2, 2, 2, 2]}
    config = {
        "architectures": ["HunYuanVLForConditionalGeneration"],
        "model_type": "hunyuan_vl",
        "image_start_token_id": 3,
        "image_end_token_id": 4,
        "image_token_id": 6,
        "image_newline_token_id": 7,
        "eos_token_id": [2, 0],
        "pad_token_id": 0,
        "pad_id": 0,
        "vocab_size": vocab_size,
        "org_vocab_size": vocab_size,
        "tie_word_embeddings": True,
        "text_config": {
            **TEXT,
            "model_type": "hunyuan_vl",
            "attention_head_dim": 16,
            "rope_scaling": rope,
            "vocab_size": vocab_size,
            "org_vocab_size": vocab_size,
        },
        "vision_config": {
            "model_type": "hunyuan_vl",
            "hidden_size": 64,
            "out_hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "patch_size": 16,
            "max_image_size": 128,
        },
    }
    return finish(folder, config, {"eos_token_id": [2, 0]}, 7)


def tiny_mllama(folder: Path) -> Path:
    """One layer of four attends to pictures, of which there are none."""
    folder.mkdir(parents=True)
    vocab_size = write_tokenizer(folder, CHATML_SPECIAL, CHATML_TOKENS)
    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = {
        "architectures": ["MllamaForConditionalGeneration"],
        "model_type": "mllama",
        "image_token_index": 6,
        "eos_token_id": [2, 0],
        "vocab_size": vocab_size,
        "text_config": {
            **{name: value for name, value in TEXT.items() if name != "head_dim"},
            "model_type": "mllama",
            "vocab_size": vocab_size,
            "cross_attention_layers": [1],
            "rope_scaling": rope,
        },
        "vision_config": {
            "model_type": "mllama",
            "image_size": 28,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "num_global_layers": 1,
            "vision_output_dim": 128,
            "intermediate_layers_indices": [0],
        },
    }
    write_json(
        folder,
        "preprocessor_config.json",
        {
            "image_processor_type": "MllamaImageProcessor",
            "size": {"height": 28, "width": 28},
            "max_image_tiles": 1,
        },
    )
    return finish(folder, config, {"eos_token_id": [2, 0]}, 7)
