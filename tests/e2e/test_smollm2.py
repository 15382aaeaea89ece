"""The embedded default model through the whole server: answers that make sense."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlx_server.config import EngineConfig, ServerConfig
from mlx_server.embedded import ensure_smollm2
from mlx_server.engine.loader import load_checkpoint
from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    SamplingParams,
    Sequence,
    Started,
    TextPart,
)
from tests.engine_runs import decode, make_runner, prefill
from tests.scripted_server import Body, Served
from tests.tiny.checkpoints import tiny_llama
from tests.tiny_server import tiny_server

pytestmark = pytest.mark.model

QUESTION = {"role": "user", "content": "What is the capital of France?"}
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure_smollm2(ServerConfig().cache_dir, lambda stage, done, total: None)


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    tiny = tiny_llama(tmp_path_factory.mktemp("other") / "tiny")
    with tiny_server(folder, tiny) as served:
        yield served


def content(body: Body) -> str:
    text: str = body["choices"][0]["message"]["content"]
    return text


def test_it_knows_a_capital(served: Served) -> None:
    body = served.chat(messages=[QUESTION], **GREEDY)
    assert content(body) == "The capital of France is Paris."
    assert body["choices"][0]["finish_reason"] == "stop"


def test_a_stream_says_the_same(served: Served) -> None:
    stream = served.stream(messages=[QUESTION], stream_options={"include_usage": True}, **GREEDY)
    assert stream.content == "The capital of France is Paris."
    assert stream.usage is not None
    assert stream.usage["prompt_tokens_details"]["cached_tokens"] > 0


def test_b070_the_second_turn_reads_only_what_is_new(served: Served) -> None:
    first = served.chat(messages=[QUESTION], **GREEDY)
    turns = [
        QUESTION,
        {"role": "assistant", "content": content(first)},
        {"role": "user", "content": "And the capital of Italy?"},
    ]
    second = served.chat(messages=turns, **GREEDY)
    usage = second["usage"]
    assert "Rome" in content(second)
    history = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    # an end token never goes through the model
    assert usage["prompt_tokens_details"]["cached_tokens"] >= history - 1


def test_b043_logprobs_are_of_the_chosen_tokens(served: Served) -> None:
    body = served.chat(messages=[QUESTION], logprobs=True, top_logprobs=2, **GREEDY)
    entries = body["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == content(body)
    for entry in entries:
        assert entry["logprob"] <= 0
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert bytes(entry["bytes"]).decode() == entry["token"]


def test_b045_a_seed_gives_the_same_text_and_another_seed_another(served: Served) -> None:
    hot: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12}
    first = content(served.chat(messages=[QUESTION], seed=1, **hot))
    other = content(served.chat(messages=[QUESTION], seed=2, **hot))
    again = content(served.chat(messages=[QUESTION], seed=1, **hot))
    assert first == again
    assert first != other


def test_a_raw_prompt_is_continued(served: Served) -> None:
    answer = served.client.post(
        "/v1/completions",
        json={"prompt": "The capital of France is", "temperature": 0, "max_tokens": 1},
    )
    assert answer.json()["choices"][0]["text"] == " Paris"


def test_it_is_the_same_after_a_swap_away_and_back(served: Served) -> None:
    before = content(served.chat(messages=[QUESTION], **GREEDY))
    assert served.chat(model="tiny", max_tokens=2)["model"] == "tiny"
    assert content(served.chat(model="smollm2", messages=[QUESTION], **GREEDY)) == before


def test_quantised_blocks_became_float32(folder: Path) -> None:
    loaded = load_checkpoint("smollm2", folder, EngineConfig())
    runner = make_runner(loaded, step_size=64, cache_bytes=0)
    prompt = ChatPrompt((ChatMessage("user", (TextPart("Hi"),)),))
    request = GenerationRequest("r", None, prompt, SamplingParams(temperature=0), max_tokens=2)
    sequence = Sequence(0, request, 0, "smollm2", seed=0, deadline=1e12)
    while not isinstance(prefill(runner, sequence), Started):
        pass
    assert len(decode(runner)) == 1
    assert "float32" in str(loaded.language_model.model.embed_tokens.weight.dtype)
