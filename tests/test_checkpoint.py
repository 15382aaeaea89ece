from pathlib import Path
from typing import Any

import pytest

from mlx_server.checkpoint import CheckpointFacts, refuse_remote_code
from mlx_server.errors import ModelLoadFailed
from tests.checkpoint_folders import LLAMA, write_checkpoint, write_safetensors

GEMMA = {"model_type": "gemma3", "text_config": {"hidden_size": 8}, "vision_config": {"depth": 2}}


def read(tmp_path: Path, config: dict[str, Any] | None = None, **files: Any) -> CheckpointFacts:
    return CheckpointFacts.read(write_checkpoint(tmp_path / "m", config, **files))


def test_a_text_model_is_described(tmp_path: Path) -> None:
    facts = read(tmp_path, chat_template__jinja="{{ messages }}")
    assert facts.model_type == "llama"
    assert facts.context_length == 4096
    assert facts.chat_template == "{{ messages }}"
    assert facts.is_generator
    assert not facts.has_vision
    assert not facts.has_remote_code


def test_the_context_of_the_text_model_inside_a_vision_model_counts(tmp_path: Path) -> None:
    text_config = {"max_position_embeddings": 262144}
    config = {
        "model_type": "qwen3_vl",
        "text_config": text_config,
        "vision_config": {"depth": 2},
        "max_position_embeddings": 1,
    }
    facts = read(tmp_path, config)
    assert facts.context_length == 262144
    assert facts.has_vision


def test_a_context_length_left_to_the_family_is_known(tmp_path: Path) -> None:
    assert read(tmp_path, GEMMA).context_length == 131072


@pytest.mark.parametrize("value", [None, "4096", 0, -1, True, [4096]])
def test_a_context_length_that_is_no_number_is_unknown(tmp_path: Path, value: Any) -> None:
    config = {"model_type": "llama", "max_position_embeddings": value, "text_config": value}
    assert read(tmp_path, config).context_length is None


def test_vision_needs_the_weights_of_a_vision_tower(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", GEMMA)
    write_safetensors(folder / "model.safetensors", "language_model.model.norm.weight")
    assert not CheckpointFacts.read(folder).has_vision
    write_safetensors(folder / "model.safetensors", "vision_tower.patch_embedding.weight")
    assert CheckpointFacts.read(folder).has_vision


def test_templates_are_looked_for_where_transformers_does(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    assert CheckpointFacts.read(folder).chat_template is None
    for name, text in (
        ("tokenizer_config.json", '{"chat_template": "third"}'),
        ("chat_template.json", '{"chat_template": "second"}'),
        ("chat_template.jinja", "first"),
    ):
        (folder / name).write_text(text)
        assert CheckpointFacts.read(folder).chat_template in text


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    templates = [
        {"name": "tool_use", "template": "with tools"},
        {"name": "default", "template": "plain"},
    ]
    facts = read(tmp_path, tokenizer_config__json={"chat_template": templates})
    assert facts.chat_template == "plain"


def test_generation_defaults_are_numbers_only(tmp_path: Path) -> None:
    given = {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": "0.9",
        "min_p": None,
        "repetition_penalty": True,
        "do_sample": True,
        "eos_token_id": 2,
    }
    facts = read(tmp_path, generation_config__json=given)
    assert facts.generation_defaults == {"temperature": 0.7, "top_k": 20, "do_sample": True}


def test_generation_defaults_are_finite(tmp_path: Path) -> None:
    assert read(tmp_path, generation_config__json='{"top_p": NaN}').generation_defaults == {}
    huge = '{"temperature": 1' + 400 * "0" + "}"
    assert read(tmp_path, generation_config__json=huge).generation_defaults == {}


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bert", "architectures": ["BertModel"]},
        {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]},
        {"model_type": "qwen3", "architectures": ["Qwen3ForSequenceClassification"]},
        {"model_type": "gemma3_text", "architectures": ["Gemma3TextModel"]},
        {"architectures": ["LlamaForCausalLM"]},
    ],
    ids=["bert", "whisper", "reranker", "embedding", "typeless"],
)
def test_what_does_not_write_text_is_no_generator(tmp_path: Path, config: dict[str, Any]) -> None:
    assert not read(tmp_path, config).is_generator


def test_a_sentence_transformer_is_no_generator(tmp_path: Path) -> None:
    assert not read(tmp_path, modules__json=[]).is_generator


def test_a_model_file_is_remote_code(tmp_path: Path) -> None:
    facts = read(tmp_path, {**LLAMA, "model_file": "m.py"})
    with pytest.raises(ModelLoadFailed, match="--trust-remote-code"):
        refuse_remote_code(facts, False)
    refuse_remote_code(facts, True)


@pytest.mark.parametrize(
    "reference", ["tokens.Tokens", ["tokens.Tokens", None], "other/repo--tokens.Tokens"]
)
def test_a_class_of_the_checkpoint_is_remote_code(tmp_path: Path, reference: Any) -> None:
    auto_map = {"auto_map": {"AutoTokenizer": reference}}
    facts = read(tmp_path, tokenizer_config__json=auto_map, tokens__py="boom()")
    assert facts.has_remote_code


def test_a_class_named_inside_a_processor_is_remote_code(tmp_path: Path) -> None:
    nested = {"image_processor": {"auto_map": {"AutoImageProcessor": "look.Look"}}}
    assert read(tmp_path, processor_config__json=nested, look__py="").has_remote_code


def test_a_class_whose_file_is_not_there_can_run_nothing(tmp_path: Path) -> None:
    facts = read(tmp_path, {**LLAMA, "auto_map": {"AutoConfig": "configuration_x.XConfig"}})
    refuse_remote_code(facts, False)


@pytest.mark.parametrize("text", ["", "[]", "{not json", "null"])
def test_a_broken_configuration_is_a_load_failure(tmp_path: Path, text: str) -> None:
    with pytest.raises(ModelLoadFailed, match=r"config\.json"):
        read(tmp_path, config__json=text)
    with pytest.raises(ModelLoadFailed, match=r"config\.json"):
        CheckpointFacts.read(tmp_path / "absent")


def test_values_of_odd_types_are_taken_as_absent(tmp_path: Path) -> None:
    odd = {"model_type": 3, "architectures": "x", "auto_map": [1], "vision_config": None}
    facts = read(tmp_path, odd, tokenizer_config__json={"chat_template": {"a": 1}})
    assert facts.model_type == ""
    assert facts.chat_template is None
    assert not facts.has_remote_code
    assert not facts.has_vision
