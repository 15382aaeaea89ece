"""Prompts that are built for their tokens alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing

from mlx_server.engine import prompt_bound
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.prompt import prepare
from mlx_server.engine.prompt_tokens import prompt_tokens
from mlx_server.engine.sequence import ChatPrompt, PromptOnly, PromptTokens, RawPrompt, Sequence
from mlx_server.errors import ContextLengthExceeded, InvalidRequest
from tests.engine_runs import make_sequence, picture, user
from tests.scripted import Script, load_scripted

Load = Callable[[str], LoadedModel]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """One token for each byte of the text."""
    return load_scripted(tmp_path_factory.mktemp("tokens"), Script())


def ask(prompt: ChatPrompt | RawPrompt, num_images: int = 0, **wanted: bool) -> Sequence:
    images = [picture("red"), picture("blue")][:num_images]
    return make_sequence(prompt, images, only_prepare=PromptOnly(**wanted))


def tokens_of(loaded: LoadedModel, text: str | tuple[int, ...], **wanted: bool) -> PromptTokens:
    return prompt_tokens(loaded, ask(RawPrompt(text), **wanted))


def test_a_text_has_the_tokens_that_an_answer_would_begin_with(tiny: LoadedModel) -> None:
    prompt = RawPrompt("hello there")
    found = prompt_tokens(tiny, ask(prompt))
    assert list(found.token_ids) == prepare(tiny, prompt, []).token_ids
    assert (found.model, found.text) == (tiny.id, "hello there")
    assert found.context_length == tiny.context_length
    assert found.token_texts is None


def test_a_chat_has_the_tokens_that_an_answer_would_begin_with(tiny: LoadedModel) -> None:
    prompt = ChatPrompt((user("hello"),))
    found, prepared = prompt_tokens(tiny, ask(prompt)), prepare(tiny, prompt, [])
    assert list(found.token_ids) == prepared.token_ids
    assert found.text == prepared.text


def test_without_the_generation_prompt_the_text_ends_before_the_answer(
    scripted: LoadedModel,
) -> None:
    whole = prompt_tokens(scripted, ask(ChatPrompt((user("hi"),))))
    bare = prompt_tokens(scripted, ask(ChatPrompt((user("hi"),), add_generation_prompt=False)))
    assert whole.text.startswith(bare.text)
    assert whole.text.removeprefix(bare.text) == "<|im_start|>assistant\n"
    assert len(bare.token_ids) < len(whole.token_ids)


def test_the_tokenizer_s_own_tokens_may_be_left_out_or_asked_for(tmp_path: Path) -> None:
    script = Script()
    script.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    loaded = load_scripted(tmp_path, script)
    assert tokens_of(loaded, "hi").token_ids == (0, *map(ord_of, "hi"))
    assert tokens_of(loaded, "hi", add_special_tokens=False).token_ids == (*map(ord_of, "hi"),)
    chat = ChatPrompt((user("hi"),))
    assert prompt_tokens(loaded, ask(chat)).token_ids[0] == 1
    assert prompt_tokens(loaded, ask(chat, add_special_tokens=True)).token_ids[:2] == (0, 1)


def ord_of(char: str) -> int:
    """The id of the scripted tokenizer's token for one byte."""
    return ord(char) + 3


@pytest.mark.parametrize("name", ["gemma3", "qwen3_vl"])
def test_pictures_count_as_many_tokens_as_the_processor_makes_of_them(
    load_tiny: Load, name: str
) -> None:
    loaded = load_tiny(name)
    prompt = ChatPrompt((user("what is it?", 2),))
    images = [picture("red"), picture("blue")]
    found = prompt_tokens(loaded, ask(prompt, 2))
    assert list(found.token_ids) == prepare(loaded, prompt, images).token_ids


def test_token_texts_come_when_they_are_asked_for(scripted: LoadedModel) -> None:
    found = tokens_of(scripted, (1, ord("a") + 3, 0xE9 + 3), token_texts=True)
    assert found.token_texts == ("<|im_start|>", "a", "\ufffd")


@pytest.mark.parametrize("text", ["", "a b", "h\u00e9 \U0001f600", " a ,  b . n't", "<|im_end|>"])
def test_the_text_of_the_tokens_of_a_text_is_that_text(scripted: LoadedModel, text: str) -> None:
    ids = tokens_of(scripted, text, add_special_tokens=False).token_ids
    assert tokens_of(scripted, ids).text == text


def test_an_empty_prompt_has_no_tokens(scripted: LoadedModel) -> None:
    assert tokens_of(scripted, "").token_ids == ()
    assert tokens_of(scripted, ()) == PromptTokens("m", scripted.context_length, "", ())


def test_ids_that_the_model_does_not_have_are_refused_by_name(scripted: LoadedModel) -> None:
    with pytest.raises(InvalidRequest) as raised:
        prompt_tokens(scripted, ask(RawPrompt((5, 4096), "tokens")))
    assert raised.value.param == "tokens"


def test_a_model_without_a_template_has_no_conversations(scripted: LoadedModel) -> None:
    with pytest.raises(InvalidRequest) as raised:
        prompt_tokens(replace(scripted, chat_template=None), ask(ChatPrompt((user("hi"),))))
    assert raised.value.param == "messages"


@pytest.mark.parametrize("content", ["a" * 5000, (5,) * 5000])
def test_a_prompt_past_the_context_is_counted(
    scripted: LoadedModel, content: str | tuple[int, ...]
) -> None:
    found = tokens_of(replace(scripted, context_length=64), content)
    assert len(found.token_ids) == 5000
    assert found.context_length == 64


@pytest.mark.parametrize("content", ["a" * 101, (5,) * 101, "a" * 200_000])
def test_a_prompt_far_past_any_context_is_refused_before_it_is_counted(
    scripted: LoadedModel, content: str | tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_bound, "MAX_COUNTED_TOKENS", 100)
    small = replace(scripted, context_length=64)
    assert len(tokens_of(small, "a" * 100).token_ids) == 100
    with pytest.raises(ContextLengthExceeded) as raised:
        tokens_of(small, content)
    assert "64 tokens" in raised.value.message
