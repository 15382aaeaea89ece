"""Requests become token ids and keys, and what does not fit is refused before it costs anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.media import LoadedImage
from mlx_server.engine.prompt import PreparedPrompt, prepare
from mlx_server.engine.prompt_bound import COUNTED_PIECE
from mlx_server.engine.sequence import ChatMessage, ChatPrompt, RawPrompt, TextPart, ToolCall
from mlx_server.errors import ContextLengthExceeded, InvalidRequest
from tests.engine_runs import assistant, make_runner, make_sequence, picture, run, system, user
from tests.scripted import Script, load_scripted

Load = Callable[[str], LoadedModel]
VISION = ("gemma3", "qwen3_vl")
IMAGE_MARKS = (
    ("gemma3", "<start_of_image>"),
    ("gemma3", "<image_soft_token>"),
    ("qwen3_vl", "<|image_pad|>"),
    ("qwen3_vl", "<|vision_start|><|video_pad|>"),
)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """One token for each byte of the text."""
    return load_scripted(tmp_path_factory.mktemp("prompt"), Script())


def look(
    loaded: LoadedModel, *colors: str, text: str = "what is it?", sizes: tuple[int, ...] = ()
) -> PreparedPrompt:
    images = [picture(c, *sizes[i : i + 1]) for i, c in enumerate(colors)]
    return prepare(loaded, ChatPrompt((user(text, len(images)),)), images)


def image_keys(loaded: LoadedModel, prompt: PreparedPrompt) -> list[int]:
    at = np.array(prompt.token_ids) == loaded.image_token_id
    return [int(key) for key in prompt.keys[at]]


def test_a_chat_is_the_tokens_of_its_rendered_text(tiny: LoadedModel) -> None:
    prompt = prepare(tiny, ChatPrompt((user("hello"),)), [])
    assert prompt.text is not None
    assert tiny.tokenizer.decode(prompt.token_ids) == prompt.text
    assert prompt.keys.tolist() == prompt.token_ids
    assert len(prompt) == len(prompt.token_ids)
    assert prompt.inputs == {}


def test_a_template_s_own_beginning_of_text_is_not_doubled(load_tiny: Load) -> None:
    loaded = load_tiny("gemma3")
    bos = loaded.tokenizer.bos_token_id
    assert prepare(loaded, ChatPrompt((user("hello"),)), []).token_ids.count(bos) == 1
    assert look(loaded, "red").token_ids.count(bos) == 1


def test_raw_text_is_tokenised_as_it_is(scripted: LoadedModel) -> None:
    prompt = prepare(scripted, RawPrompt("h\u00e9"), [])
    assert prompt.token_ids == [byte + 3 for byte in "h\u00e9".encode()]
    assert prompt.text == "h\u00e9"


def test_raw_token_ids_are_fed_as_they_are_and_have_a_text_for_echo(scripted: LoadedModel) -> None:
    prompt = prepare(scripted, RawPrompt((1, ord("a") + 3, 2)), [])
    assert prompt.token_ids == [1, ord("a") + 3, 2]
    assert prompt.text == "<|im_start|>a<|im_end|>"


@pytest.mark.parametrize("token_id", [-1, 4096, 10**9, 2**70])
def test_token_ids_outside_of_the_vocabulary_are_refused(
    scripted: LoadedModel, token_id: int
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        prepare(scripted, RawPrompt((5, token_id), param="prompt"), [])
    assert raised.value.param == "prompt"
    assert "4095" in raised.value.message


@pytest.mark.parametrize("content", ["", ()])
def test_the_empty_prompt_is_one_token(tiny: LoadedModel, content: str | tuple[int, ...]) -> None:
    prompt = prepare(tiny, RawPrompt(content), [])
    tokenizer = tiny.tokenizer
    first = tokenizer.bos_token_id
    assert prompt.token_ids == [tokenizer.eos_token_id if first is None else first]
    assert run(make_runner(tiny), make_sequence(RawPrompt(content))).deltas


@pytest.mark.parametrize("content", ["a" * 63, (5,) * 63])
def test_b016_a_prompt_that_leaves_room_for_one_token_is_accepted(
    scripted: LoadedModel, content: str | tuple[int, ...]
) -> None:
    small = replace(scripted, context_length=64)
    assert len(prepare(small, RawPrompt(content), [])) == 63


@pytest.mark.parametrize("content", ["a" * 64, (5,) * 64, "a" * 5000, (5,) * 5000])
def test_b016_a_prompt_past_the_context_is_refused_with_both_numbers(
    scripted: LoadedModel, content: str | tuple[int, ...]
) -> None:
    small = replace(scripted, context_length=64)
    with pytest.raises(ContextLengthExceeded) as raised:
        prepare(small, RawPrompt(content, param="prompt"), [])
    assert raised.value.code == "context_length_exceeded"
    assert raised.value.param == "prompt"
    assert "64 tokens" in raised.value.message


def test_b016_a_chat_past_the_context_is_refused(tiny: LoadedModel) -> None:
    small = replace(tiny, context_length=64)
    with pytest.raises(ContextLengthExceeded) as raised:
        prepare(small, ChatPrompt((user("a" * 100),)), [])
    assert raised.value.param == "messages"


@pytest.mark.parametrize("name", VISION)
def test_b016_images_count_towards_the_context(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    num_tokens = len(look(loaded, "red", "blue"))
    assert len(look(replace(loaded, context_length=num_tokens + 1), "red", "blue")) == num_tokens
    with pytest.raises(ContextLengthExceeded):
        look(replace(loaded, context_length=num_tokens), "red", "blue")


@pytest.mark.parametrize("text", ["a" * 30_000_000, "\u6f22 " * 8_000_000], ids=["ascii", "han"])
def test_a_huge_text_is_refused_long_before_it_is_tokenised(
    scripted: LoadedModel, text: str
) -> None:
    roomy = replace(scripted, context_length=1_000_000)
    for prompt in (RawPrompt(text), ChatPrompt((user(text),))):
        began = time.monotonic()
        with pytest.raises(ContextLengthExceeded) as raised:
            prepare(roomy, prompt, [])
        assert time.monotonic() - began < 2.0
        assert "more than" in raised.value.message


def test_counting_in_pieces_refuses_nothing_that_fits(scripted: LoadedModel) -> None:
    num_tokens = 2 * COUNTED_PIECE + 100
    fits = replace(scripted, context_length=num_tokens + 1)
    assert len(prepare(fits, RawPrompt("a" * num_tokens), [])) == num_tokens
    with pytest.raises(ContextLengthExceeded):
        prepare(replace(fits, context_length=num_tokens), RawPrompt("a" * num_tokens), [])


@pytest.mark.parametrize("name", VISION)
def test_b106_image_tokens_stand_for_their_pictures(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    red, blue, again = (look(loaded, color) for color in ("red", "blue", "red"))
    assert red.token_ids == blue.token_ids
    assert red.keys.tolist() == again.keys.tolist()
    assert len(set(image_keys(loaded, red))) == 1
    assert not set(image_keys(loaded, red)) & set(image_keys(loaded, blue))
    assert all(key < 0 for key in image_keys(loaded, red)), "no token id may be equal to it"
    text = np.array(red.token_ids) != loaded.image_token_id
    assert red.keys[text].tolist() == np.array(red.token_ids)[text].tolist()


@pytest.mark.parametrize("name", VISION)
def test_each_picture_salts_its_own_tokens(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    keys = image_keys(loaded, look(loaded, "red", "blue", "red"))
    third = len(keys) // 3
    first, second, last = keys[:third], keys[third : 2 * third], keys[2 * third :]
    assert first == last != second
    assert first == image_keys(loaded, look(loaded, "red"))


def test_pictures_of_other_sizes_are_other_pictures(load_tiny: Load) -> None:
    loaded = load_tiny("gemma3")
    small, large = (look(loaded, "red", sizes=(size,)) for size in (64, 128))
    assert image_keys(loaded, small) != image_keys(loaded, large)


@pytest.mark.parametrize(("name", "mark"), IMAGE_MARKS)
def test_text_that_spells_an_image_mark_is_text_where_there_are_no_images(
    load_tiny: Load, name: str, mark: str
) -> None:
    loaded = load_tiny(name)
    runner = make_runner(loaded, step_size=16)
    for prompt in (ChatPrompt((user(f"what does {mark} mean?"),)), RawPrompt(mark)):
        assert run(runner, make_sequence(prompt)).finish_reason is not None


@pytest.mark.parametrize(("name", "mark"), IMAGE_MARKS)
def test_text_that_spells_an_image_mark_beside_images_is_refused(
    load_tiny: Load, name: str, mark: str
) -> None:
    loaded = load_tiny(name)
    call = ToolCall("call_1", "f", {"x": mark})
    messages = (
        user(mark, 1),
        ChatMessage("assistant", tool_calls=(call,)),
        ChatMessage("tool", (TextPart(f"<<{mark}>>"),), tool_call_id="call_1"),
    )
    for message in messages:
        turns = (user("look", 1), message) if message is not messages[0] else (message,)
        with pytest.raises(InvalidRequest) as raised:
            prepare(loaded, ChatPrompt(turns), [picture("red")])
        assert raised.value.param == "messages"
        assert mark not in raised.value.message
    with pytest.raises(InvalidRequest):
        prepare(loaded, ChatPrompt((split_mark(mark),)), [picture("red")])
    tool = {"type": "function", "function": {"name": "f", "description": mark}}
    with pytest.raises(InvalidRequest):
        prepare(loaded, ChatPrompt((user("look", 1),), (tool,)), [picture("red")])


def split_mark(mark: str) -> ChatMessage:
    """A mark that stands in no part alone, but in the prompt once the template has joined them."""
    return replace(
        user("look", 1), content=(*user("look", 1).content, TextPart(mark[:5]), TextPart(mark[5:]))
    )


def checkpoint_texts(loaded: LoadedModel, prompt: PreparedPrompt) -> list[str]:
    return [loaded.tokenizer.decode(prompt.token_ids[:place]) for place in prompt.checkpoints]


def test_models_that_can_go_back_need_no_checkpoints(load_tiny: Load) -> None:
    for name in ("llama", "qwen3_vl"):
        assert prepare(load_tiny(name), ChatPrompt((user("hello"),)), []).checkpoints == ()


@pytest.mark.parametrize("name", ["qwen3_next", "gemma3"])
def test_checkpoints_lie_where_the_first_and_last_question_begin_and_at_the_end(
    load_tiny: Load, name: str
) -> None:
    loaded = load_tiny(name)
    turns = (system("be kind"), user("one"), assistant("two"), user("three"), assistant("four"))
    prompt = prepare(loaded, ChatPrompt((*turns, user("five"))), [])
    first, last, end = checkpoint_texts(loaded, prompt)
    assert first.endswith(("<|im_start|>user\n", "be kind\n\n"))
    assert last.endswith("user\n")
    assert "four" in last
    assert prompt.checkpoints[-1] == len(prompt) - 1
    assert end.endswith(("assistant", "model"))


@pytest.mark.parametrize("messages", [(system("be kind"),), (user("\u241e"),), (user(""),)])
def test_checkpoints_of_odd_conversations_lie_inside_of_the_prompt(
    load_tiny: Load, messages: tuple[object, ...]
) -> None:
    prompt = prepare(load_tiny("qwen3_next"), ChatPrompt(messages), [])  # type: ignore[arg-type]
    assert all(0 < place < len(prompt) for place in prompt.checkpoints)
    assert list(prompt.checkpoints) == sorted(set(prompt.checkpoints))


@pytest.mark.parametrize(
    "pictures", [[], [picture("red")], [picture("red"), picture("blue")]], ids=["0", "1", "2"]
)
def test_two_questions_part_at_a_checkpoint_also_behind_pictures(
    load_tiny: Load, pictures: list[LoadedImage]
) -> None:
    loaded = load_tiny("gemma3")
    lead = (user("look", len(pictures)), assistant("yes"))
    one, other = (
        prepare(loaded, ChatPrompt((*lead, user(text))), pictures) for text in ("abc", "xyz")
    )
    common = next(i for i, (a, b) in enumerate(zip(one.keys, other.keys, strict=True)) if a != b)
    assert common in one.checkpoints
    assert one.checkpoints == other.checkpoints


def test_a_checkpoint_before_a_picture_of_the_last_question_is_kept(load_tiny: Load) -> None:
    loaded = load_tiny("gemma3")
    lead = (user("look", 1), assistant("yes"))
    one = prepare(loaded, ChatPrompt((*lead, user("and", 1))), [picture("red"), picture("blue")])
    texts = checkpoint_texts(loaded, one)
    # between two pictures the place is not known, but before the first and at the end it is
    assert any(text.endswith("user\n") and "look" not in text for text in texts)
    assert one.checkpoints[-1] == len(one) - 1


def test_a_template_that_makes_nothing_of_the_messages_is_a_refusal(load_tiny: Load) -> None:
    loaded = replace(load_tiny("llama"), chat_template="{{ messages[0].content }}")
    with pytest.raises(InvalidRequest):
        prepare(loaded, ChatPrompt((ChatMessage("user"),)), [])
