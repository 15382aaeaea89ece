"""What a checkpoint folder says of itself, without loading it.

The files are written by strangers: whatever has an unexpected type is taken as absent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_server.checkpoint_files import read_json, weight_names
from mlx_server.errors import ModelLoadFailed

CONTEXT_KEYS = (
    "max_position_embeddings",
    "max_sequence_length",
    "n_positions",
    "n_ctx",
    "seq_length",
)
# Their configurations leave the length to the default of the class that reads them.
CONTEXT_LENGTHS = {"gemma3": 131072}
VISION_KEYS = ("vision_config", "mm_vision_tower", "img_processor")
VISION_WEIGHTS = ("vision", "visual", "vit", "image", "img", "patch_embed")
MAX_NUMBER = 1 << 31
GENERATION_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
CODE_FILES = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "image_processor_config.json",
    "video_preprocessor_config.json",
)
OTHER_TYPES = frozenset(
    (
        "albert",
        "bert",
        "camembert",
        "clap",
        "clip",
        "convbert",
        "dac",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "encodec",
        "hubert",
        "kokoro",
        "longformer",
        "modernbert",
        "mpnet",
        "nomic_bert",
        "parakeet",
        "roberta",
        "siglip",
        "siglip2",
        "speecht5",
        "vits",
        "wav2vec2",
        "wavlm",
        "whisper",
        "xlm-roberta",
    )
)
OTHER_ARCHITECTURES = (
    "Classification",
    "ForCTC",
    "ForMaskedLM",
    "ForQuestionAnswering",
    "ForSpeechSeq2Seq",
    "TextModel",
    "BertModel",
    "RobertaModel",
    "RewardModel",
)


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """`generation_defaults` has the keys of SamplingDefaults that generation_config.json sets, and
    `do_sample`. `is_generator` is False only where the folder plainly holds something that does not
    write text.
    """

    model_type: str
    has_vision: bool
    context_length: int | None
    chat_template: str | None
    has_remote_code: bool
    generation_defaults: Mapping[str, Any]
    is_generator: bool

    @classmethod
    def read(cls, path: Path) -> CheckpointFacts:
        """Raises ModelLoadFailed if there is no configuration to read."""
        config = read_json(path / "config.json")
        if not config:
            raise ModelLoadFailed("The model's folder holds no config.json that can be read.")
        return cls(
            model_type=_text(config.get("model_type")) or "",
            has_vision=_has_vision(path, config),
            context_length=_context_length(config),
            chat_template=_chat_template(path),
            has_remote_code=_has_remote_code(path, config),
            generation_defaults=_generation_defaults(path),
            is_generator=_is_generator(path, config),
        )


def refuse_remote_code(facts: CheckpointFacts, trusted: bool) -> None:
    """Raises ModelLoadFailed for a checkpoint with code of its own that nobody vouched for."""
    if facts.has_remote_code and not trusted:
        raise ModelLoadFailed(
            "The model's checkpoint brings Python code of its own, which this server does not "
            "run. Start it with --trust-remote-code if you trust that code."
        )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_generator(path: Path, config: Mapping[str, Any]) -> bool:
    model_type = _text(config.get("model_type"))
    if model_type is None or model_type in OTHER_TYPES:
        return False
    # the list of layers that sentence-transformers puts around a model to make it embed
    if (path / "modules.json").is_file():
        return False
    names = config.get("architectures")
    architectures = filter(_text, names) if isinstance(names, list) else ()
    return not any(name.endswith(OTHER_ARCHITECTURES) for name in architectures)


def _has_vision(path: Path, config: Mapping[str, Any]) -> bool:
    """A conversion to text only may keep the vision tower's configuration, but not its weights."""
    if not any(config.get(key) for key in VISION_KEYS):
        return False
    names = weight_names(path)
    return not names or any(mark in name for name in names for mark in VISION_WEIGHTS)


def _context_length(config: Mapping[str, Any]) -> int | None:
    text_config = next(
        (_mapping(config[k]) for k in ("text_config", "llm_config") if config.get(k)), {}
    )
    for part in (text_config, config):
        for key in CONTEXT_KEYS:
            value = part.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return CONTEXT_LENGTHS.get(_text(config.get("model_type")) or "")


def _chat_template(path: Path) -> str | None:
    """The template in the order in which transformers looks for it; of several, the default."""
    try:
        return _text((path / "chat_template.jinja").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        pass
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = _chosen(read_json(path / name).get("chat_template"))
        if template is not None:
            return template
    return None


def _chosen(template: Any) -> str | None:
    if isinstance(template, list):
        entries = [_mapping(entry) for entry in template]
        named = {_text(e.get("name")): _text(e.get("template")) for e in entries}
        return named.get("default") or next(filter(None, named.values()), None)
    return _text(template)


def _has_remote_code(path: Path, config: Mapping[str, Any]) -> bool:
    """Whether loading could run code that the checkpoint names: its own, or another repository's.

    A reference to a file that is not there runs nothing.
    """
    if config.get("model_file"):
        return True
    return any(
        _runs(path, reference)
        for name in CODE_FILES
        for reference in _code_references(read_json(path / name))
    )


def _code_references(config: Mapping[str, Any]) -> Iterator[str]:
    for part in (config, *map(_mapping, config.values())):
        for value in _mapping(part.get("auto_map")).values():
            yield from filter(_text, value if isinstance(value, list) else [value])


def _runs(path: Path, reference: str) -> bool:
    module = reference.rpartition(".")[0]
    return "--" in reference or (path / f"{module}.py").is_file()


def _generation_defaults(path: Path) -> Mapping[str, Any]:
    given = read_json(path / "generation_config.json")
    defaults: dict[str, Any] = {
        key: value for key in GENERATION_KEYS if _is_number(value := given.get(key))
    }
    if isinstance(given.get("do_sample"), bool):
        defaults["do_sample"] = given["do_sample"]
    return defaults


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_NUMBER
