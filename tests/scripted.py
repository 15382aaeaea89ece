"""A model whose answers are written down: it runs through the real engine, token by token.

Every answer is a list of pieces, one token each; a piece may be an exception, which the forward
pass raises in its place. Answers are used up in the order in which prompts reach the model, and the
last one is used again and again. After its pieces a model says its end token.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_vlm.models.base import InputEmbeddingsFeatures, LanguageModelOutput
from mlx_vlm.models.cache import KVCache
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mlx_server.checkpoint import CheckpointFacts
from mlx_server.config import EngineConfig
from mlx_server.engine.grammar import GrammarVocabulary
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.loader import assemble
from mlx_server.engine.processors import Processor
from mlx_server.engine.token_text import TokenText
from tests.tiny.templates import CHATML
from tests.tiny.tokenizer import write_json

VOCAB_SIZE = 4096
END = "<|im_end|>"
NOT_A_NUMBER = "<nan>"
"""A piece in whose place the model's logits are no numbers."""
Piece = str | Exception


def make_tokenizer(chat_template: str = CHATML) -> PreTrainedTokenizerFast:
    """One token for each byte, written <0x41>, and one for each piece that an answer needs."""
    vocab = {"<|endoftext|>": 0, "<|im_start|>": 1, END: 2}
    vocab |= {f"<0x{byte:02X}>": byte + 3 for byte in range(256)}
    backend = Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(
        [
            AddedToken(t, normalized=False, special=True)
            for t in ("<|endoftext|>", "<|im_start|>", END)
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=END, chat_template=chat_template
    )


@dataclass(eq=False)
class Script:
    """What the model will say, and what it was asked; shared by test and MLX thread."""

    tokenizer: PreTrainedTokenizerFast = field(default_factory=make_tokenizer)
    model_type: str = "llama"
    prefill_s: float = 0.0
    token_s: float = 0.0
    load_s: float = 0.0
    load_error: BaseException | None = None
    num_tokens: int = 0
    log: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    _answers: list[list[int | Exception]] = field(default_factory=list)
    _num_begun: int = 0

    def __post_init__(self) -> None:
        self.gate.set()
        self.chat_template = self.tokenizer.chat_template

    def say(self, *pieces: Piece) -> None:
        self._answers.append([self._token(piece) for piece in pieces])

    def say_bytes(self, text: str) -> None:
        """One token for each byte of `text`."""
        self._answers.append([byte + 3 for byte in text.encode()])

    def say_only(self, text: str) -> None:
        """Answer every prompt from now on with a token for each byte of `text`."""
        self._answers = [[byte + 3 for byte in text.encode()]]

    def begin(self) -> int:
        """The number of the answer that the next prompt gets."""
        self._num_begun += 1
        return min(self._num_begun, len(self._answers)) - 1

    def next_token(self, answer: int, step: int) -> int:
        tokens = self._answers[answer] if answer >= 0 else []
        if step >= len(tokens):
            return 2
        token = tokens[step]
        if isinstance(token, Exception):
            raise token
        return token

    def _token(self, piece: Piece) -> int | Exception:
        if isinstance(piece, Exception):
            return piece
        if piece in ("<|endoftext|>", "<|im_start|>", END):
            return int(self.tokenizer.convert_tokens_to_ids(piece))
        backend = self.tokenizer.backend_tokenizer
        if len(piece) == 1 and ord(piece) < 128:
            return ord(piece) + 3
        if backend.token_to_id(piece) is None:
            backend.add_tokens([AddedToken(piece, normalized=False)])
        return int(backend.token_to_id(piece))


class ScriptedLanguageModel(nn.Module):
    """Keeps (answer, step) of every row as the newest key of a real KV cache, so rows may move."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.scale = mx.ones(1)
        self._script = script

    def make_cache(self) -> list[KVCache]:
        return [KVCache()]

    def __call__(
        self,
        inputs: mx.array,
        cache: list[Any],
        n_to_process: int | None = None,
        logits_to_keep: int | None = None,
        **_: Any,
    ) -> LanguageModelOutput:
        script = self._script
        rows, length = inputs.shape
        if is_measuring(inputs):
            self._write(cache, [(-1, -1)] * rows, length)
            return LanguageModelOutput(logits=mx.zeros((rows, 1, VOCAB_SIZE)))
        script.gate.wait()
        if n_to_process is not None:
            time.sleep(script.prefill_s)
            self._write(cache, [(-1, -1)] * rows, length)
            return LanguageModelOutput(logits=mx.zeros((rows, length, VOCAB_SIZE)))
        if logits_to_keep is not None:
            script.log.append("prefill")
            states = [(script.begin(), 0) for _ in range(rows)]
            self._write(cache, states, length)
        else:
            script.num_tokens += rows
            time.sleep(script.token_s)
            states = [(a, s + 1) for a, s in self._newest(cache)]
            self._write(cache, states, length)
        return LanguageModelOutput(logits=self._logits(states))

    def _logits(self, states: list[tuple[int, int]]) -> mx.array:
        tokens = mx.array([self._script.next_token(*state) for state in states])
        # the runner-up is the next id, so that logprobs are worth looking at; no test is long
        # enough to draw it once in 500 million tokens
        ids = mx.arange(VOCAB_SIZE)[None, :]
        logits = 30.0 * (ids == tokens[:, None]) + 10.0 * (ids == tokens[:, None] + 1)
        nan_id = self._script.tokenizer.backend_tokenizer.token_to_id(NOT_A_NUMBER)
        if nan_id is not None:
            logits = mx.where(tokens[:, None] == nan_id, mx.nan, logits)
        return logits[:, None, :]

    def _newest(self, cache: list[Any]) -> list[tuple[int, int]]:
        keys = cache[0].state[0]
        return [(int(a), int(s)) for a, s in keys[:, 0, -1, :].tolist()]

    def _write(self, cache: list[Any], states: list[tuple[int, int]], length: int) -> None:
        keys = mx.broadcast_to(
            mx.array(states, dtype=mx.float32)[:, None, None, :], (len(states), 1, length, 2)
        )
        cache[0].update_and_fetch(keys, keys)


def is_measuring(inputs: mx.array) -> bool:
    """Whether this is the pass by which a load learns the size of the caches: no prompt of a test
    has nothing but the first token.
    """
    return inputs.shape[1] > 1 and not bool(inputs.any())


class ScriptedModel(nn.Module):
    def __init__(self, script: Script) -> None:
        super().__init__()
        self.language_model = ScriptedLanguageModel(script)
        self.config = SimpleNamespace(eos_token_id=2, vocab_size=VOCAB_SIZE)

    def get_input_embeddings(
        self, ids: mx.array, pixels: mx.array | None = None, mask: mx.array | None = None
    ) -> InputEmbeddingsFeatures:
        return InputEmbeddingsFeatures(inputs_embeds=mx.zeros((*ids.shape, 1)))


def write_scripted_checkpoint(folder: Path, *, chat_template: str = CHATML, **config: Any) -> Path:
    """A folder that the catalog takes for a checkpoint; its weights are never read."""
    folder.mkdir(parents=True)
    write_json(
        folder,
        "config.json",
        {
            "model_type": "llama",
            "vocab_size": VOCAB_SIZE,
            "max_position_embeddings": 8192,
            **config,
        },
    )
    write_json(folder, "tokenizer_config.json", {"chat_template": chat_template})
    make_tokenizer().backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def write_weight_header(path: Path, num_bytes: int) -> None:
    """A weight file that says it holds so many bytes, and holds none."""
    tensor = {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}
    header = json.dumps({f"{path.stem}.weight": tensor}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


class ScriptedLoader:
    """Stands in for `load_checkpoint`: the folder's name says which script the model follows."""

    def __init__(self, **scripts: Script) -> None:
        self.scripts = scripts
        self.loads: list[str] = []

    def __call__(self, model_id: str, path: Path, config: EngineConfig) -> LoadedModel:
        script = self.scripts[path.name]
        self.loads.append(path.name)
        for other in self.scripts.values():
            other.log.append(f"load {path.name}")
        time.sleep(script.load_s)
        if script.load_error is not None:
            raise script.load_error
        facts = CheckpointFacts.read(path)
        tokenizer = script.tokenizer
        read = Processor(tokenizer, TokenText(tokenizer), GrammarVocabulary(tokenizer))
        return assemble(model_id, ScriptedModel(script), read, facts, config)


def load_scripted(folder: Path, script: Script) -> LoadedModel:
    """A scripted model alone, without a worker; its checkpoint goes into `folder`."""
    path = write_scripted_checkpoint(folder / "m")
    return ScriptedLoader(m=script)("m", path, EngineConfig())
