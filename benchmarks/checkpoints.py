"""The checkpoints that are measured, made once in a work folder: all float32, all without an end.

    .venv/bin/python -m benchmarks.checkpoints WORK_DIR NAME ...

The rows of the control tokens in the (tied) embedding are zeros, so that their logits are zero and
the likeliest token is never one of them: no server ends an answer before the others. Runs in a
process of its own, which gives the memory back.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mlx_server.config import ServerConfig
from mlx_server.embedded import ensure_smollm2
from mlx_server.engine.blas import preload_blas

SMOLLM2 = "smollm2-f32"
SMOLLM2_COPY = "smollm2-f32-copy"
WINDOWS = "windows-85m"
MOE, MOE_COPY = "moe-a", "moe-b"
SMALL_MOE, SMALL_MOE_COPY = "small-moe-a", "small-moe-b"
TIMEOUT_S = 1200
EMBEDDING = "model.embed_tokens.weight"

COMMON = {
    "vocab_size": 49152,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8192,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
GEMMA3 = {
    **COMMON,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 16,
    "intermediate_size": 2048,
    "query_pre_attn_scalar": 64,
    "sliding_window": 512,
    "sliding_window_pattern": 4,
}


def qwen3_moe(num_experts: int) -> dict[str, Any]:
    """Much to load and little to compute: 19 MB an expert in all layers, four of them a token."""
    return {
        **COMMON,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 4,
        "intermediate_size": 1024,
        "moe_intermediate_size": 768,
        "num_experts": num_experts,
        "num_experts_per_tok": 4,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }


def ensure(work_dir: Path, names: list[str]) -> dict[str, Path]:
    """The folders by name; those that are missing are made first."""
    missing = [name for name in names if not (work_dir / name / "config.json").is_file()]
    if missing:
        print(f"making {', '.join(missing)} in {work_dir} ...", file=sys.stderr)
        command = [sys.executable, "-m", "benchmarks.checkpoints", str(work_dir), *missing]
        root = Path(__file__).parent.parent
        subprocess.run(command, cwd=root, check=True, timeout=TIMEOUT_S)
    return {name: work_dir / name for name in names}


def make(work_dir: Path, name: str) -> None:
    """Whole or not there at all: config.json, by which a folder is known, comes last."""
    folder = work_dir / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = MAKERS[name](folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def make_smollm2(folder: Path) -> dict[str, Any]:
    """The embedded model's own weights, dequantised."""
    import mlx.core as mx

    source = smollm2()
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    quantization = config.pop("quantization")
    given: Any = mx.load(str(source / "model.safetensors"))
    weights = {}
    for key, array in given.items():
        layer, _, part = key.rpartition(".")
        if part == "weight" and f"{layer}.scales" in given:
            kind = quantization.get(layer, quantization)
            scales, biases = given[f"{layer}.scales"], given[f"{layer}.biases"]
            array = mx.dequantize(array, scales, biases, kind["group_size"], kind["bits"])
        if part == "weight":
            weights[key] = array.astype(mx.float32)
    silence(weights, source)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    copy_tokenizer(source, folder)
    return config


def make_copy(original: str) -> Callable[[Path], dict[str, Any]]:
    """Another name for the same files."""

    def link(folder: Path) -> dict[str, Any]:
        source = ensure(folder.parent, [original])[original]
        for file in source.iterdir():
            if file.name != "config.json":
                os.link(file, folder / file.name)
        config: dict[str, Any] = json.loads((source / "config.json").read_text())
        return config

    return link


def make_random(config: dict[str, Any], seed: int) -> Callable[[Path], dict[str, Any]]:
    """Seeded noise, written layer by layer so that only one has to be in memory."""

    def write(folder: Path) -> dict[str, Any]:
        import mlx.core as mx

        mx.random.seed(seed)
        shards = list(shards_of(config))
        places: dict[str, str] = {}
        for number, shapes in enumerate(shards, start=1):
            name = f"model-{number:05}-of-{len(shards):05}.safetensors"
            weights = {key: noise(shape) for key, shape in shapes.items()}
            silence(weights, smollm2())
            mx.save_safetensors(str(folder / name), weights, metadata={"format": "mlx"})
            places |= dict.fromkeys(weights, name)
        index = {"metadata": {}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        copy_tokenizer(smollm2(), folder)
        return config

    return write


def shards_of(config: dict[str, Any]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Shapes by the names that checkpoints of the hub have, which every server knows to read."""
    from mlx.utils import tree_flatten
    from mlx_lm.utils import _get_classes

    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    shapes = {k: v.shape for k, v in tree_flatten(model.parameters()) if "lm_head" not in k}
    layers = sorted({shard_of(key) for key in shapes})
    for layer in layers:
        yield {key: shape for key, shape in shapes.items() if shard_of(key) == layer}


def shard_of(key: str) -> str:
    parts = key.split(".")
    return parts[2] if parts[1] == "layers" else ""


def noise(shape: tuple[int, ...]) -> Any:
    import mlx.core as mx

    if len(shape) == 1:
        return mx.ones(shape)
    return mx.random.normal(shape) * shape[-1] ** -0.5


def silence(weights: dict[str, Any], tokenizer_folder: Path) -> None:
    """Take the control tokens out of what the model can say, if `weights` has the embedding."""
    if EMBEDDING not in weights:
        return
    tokenizer = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        weights[EMBEDDING][token["id"]] = 0.0


def copy_tokenizer(source: Path, folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / name, folder / name)


def smollm2() -> Path:
    return ensure_smollm2(ServerConfig().cache_dir, lambda stage, done, total: None)


MAKERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    SMOLLM2: make_smollm2,
    SMOLLM2_COPY: make_copy(SMOLLM2),
    WINDOWS: make_random(GEMMA3, seed=1),
    MOE: make_random(qwen3_moe(128), seed=1),
    MOE_COPY: make_random(qwen3_moe(128), seed=2),
    SMALL_MOE: make_random(qwen3_moe(8), seed=1),
    SMALL_MOE_COPY: make_random(qwen3_moe(8), seed=2),
}


def main() -> None:
    preload_blas()
    work_dir, *names = sys.argv[1:]
    for name in names:
        make(Path(work_dir), name)


if __name__ == "__main__":
    main()
