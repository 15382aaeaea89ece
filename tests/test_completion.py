"""An answer ends where it should, and its text, counts and logprobs agree."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_server.engine.batch import RowToken
from mlx_server.engine.completion import Completion
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.logprobs import TopLogprobs
from mlx_server.engine.sequence import Delta, FinishReason, TokenLogprob
from tests.scripted import Script, load_scripted

END = 2
# the scripted tokenizer has one token for each byte, from this id on
FIRST_BYTE = 3
SMILE = "\U0001f600".encode()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_scripted(tmp_path_factory.mktemp("completion"), Script())


def make(loaded: LoadedModel, *, max_tokens: int = 1000, stop: tuple[str, ...] = ()) -> Completion:
    return Completion(loaded, [], index=0, max_tokens=max_tokens, stop=stop)


def feed(completion: Completion, data: bytes, *, with_logprobs: bool = True) -> list[Delta]:
    """One token for each byte, and the end token behind them; stops where the answer ends."""
    deltas = []
    for place, token_id in enumerate([*(byte + FIRST_BYTE for byte in data), END]):
        logprobs = TopLogprobs(-float(place), ((token_id, -float(place)),))
        deltas.append(completion.add(RowToken(0, token_id, logprobs if with_logprobs else None)))
        if deltas[-1].finish_reason is not None:
            break
    return deltas


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def logprobs_of(deltas: list[Delta]) -> list[TokenLogprob]:
    return [entry for delta in deltas for entry in delta.logprobs]


def bytes_of(deltas: list[Delta]) -> bytes:
    return b"".join(entry.token_bytes for entry in logprobs_of(deltas))


def check_form(deltas: list[Delta]) -> None:
    assert [delta.num_completion_tokens for delta in deltas] == list(range(1, len(deltas) + 1))
    assert all(delta.finish_reason is None for delta in deltas[:-1])
    assert deltas[-1].finish_reason is not None


def test_the_end_token_ends_the_answer_and_has_no_text_and_no_logprobs(
    loaded: LoadedModel,
) -> None:
    deltas = feed(make(loaded), b"hello")
    check_form(deltas)
    assert text_of(deltas) == "hello"
    assert deltas[-1] == Delta(0, "", 6, (), FinishReason.STOP)
    assert bytes_of(deltas) == b"hello"


def test_every_end_token_of_the_model_ends_the_answer(loaded: LoadedModel) -> None:
    for token_id in loaded.stop_token_ids:
        completion = make(loaded)
        assert completion.add(RowToken(0, token_id, None)).finish_reason is FinishReason.STOP


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_limit_ends_the_answer_with_the_last_token_s_text(
    loaded: LoadedModel, limit: int
) -> None:
    deltas = feed(make(loaded, max_tokens=limit), b"hello world")
    check_form(deltas)
    assert text_of(deltas) == "hello world"[:limit]
    assert deltas[-1].num_completion_tokens == limit
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_an_end_token_at_the_limit_is_a_stop(loaded: LoadedModel) -> None:
    deltas = feed(make(loaded, max_tokens=6), b"hello")
    assert deltas[-1].finish_reason is FinishReason.STOP


def test_a_stop_string_complete_at_the_limit_is_a_stop(loaded: LoadedModel) -> None:
    deltas = feed(make(loaded, max_tokens=5, stop=("lo",)), b"hello")
    assert text_of(deltas) == "hel"
    assert deltas[-1].finish_reason is FinishReason.STOP


def test_half_a_stop_string_at_the_limit_is_text(loaded: LoadedModel) -> None:
    deltas = feed(make(loaded, max_tokens=5, stop=("low",)), b"hello")
    assert text_of(deltas) == "hello"
    assert bytes_of(deltas) == b"hello"
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_b053_nothing_of_a_stop_string_comes_out_with_its_logprobs(loaded: LoadedModel) -> None:
    deltas = feed(make(loaded, stop=("STOP",)), b"a STO b STOP c")
    check_form(deltas)
    assert text_of(deltas) == "a STO b "
    assert [delta.stop for delta in deltas] == [None] * (len(deltas) - 1) + ["STOP"]
    assert bytes_of(deltas) == b"a STO b "
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].num_completion_tokens == len("a STO b STOP")


def test_text_that_might_begin_a_stop_string_waits_and_so_do_its_logprobs(
    loaded: LoadedModel,
) -> None:
    deltas = feed(make(loaded, stop=("STOP",)), b"xSTy")
    assert [delta.text for delta in deltas] == ["x", "", "", "STy", ""]
    assert [len(delta.logprobs) for delta in deltas] == [1, 0, 0, 3, 0]


def test_b096_the_logprobs_of_a_character_s_bytes_come_with_it(loaded: LoadedModel) -> None:
    deltas = feed(make(loaded), b"a" + SMILE + b"b")
    assert [delta.text for delta in deltas] == ["a", "", "", "", "\U0001f600", "b", ""]
    assert [len(delta.logprobs) for delta in deltas] == [1, 0, 0, 0, 4, 1, 0]
    assert bytes_of(deltas) == b"a" + SMILE + b"b"


def test_half_a_character_at_the_limit_is_dropped_but_counted(loaded: LoadedModel) -> None:
    deltas = feed(make(loaded, max_tokens=3), b"a" + SMILE)
    assert text_of(deltas) == "a"
    assert deltas[-1].num_completion_tokens == 3
    assert bytes_of(deltas) == b"a" + SMILE[:2]


def test_an_answer_that_is_cut_has_all_its_text(loaded: LoadedModel) -> None:
    completion = make(loaded, stop=("STOP",))
    deltas = [completion.add(RowToken(0, byte + FIRST_BYTE, None)) for byte in b"xST"]
    deltas.append(completion.cut())
    assert text_of(deltas) == "xST"
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert deltas[-1].num_completion_tokens == 3


def test_an_answer_cut_before_its_first_token_is_empty(loaded: LoadedModel) -> None:
    assert make(loaded).cut() == Delta(0, "", 0, (), FinishReason.LENGTH)


def test_without_logprobs_there_are_none(loaded: LoadedModel) -> None:
    assert logprobs_of(feed(make(loaded), b"hello", with_logprobs=False)) == []


def test_a_token_is_described_with_its_rivals(loaded: LoadedModel) -> None:
    a, half = ord("a") + FIRST_BYTE, SMILE[0] + FIRST_BYTE
    logprobs = TopLogprobs(-0.5, ((a, -0.5), (half, -1.5), (END, -3.0)))
    (entry,) = make(loaded).add(RowToken(0, a, logprobs)).logprobs
    assert (entry.token, entry.token_bytes, entry.logprob) == ("a", b"a", -0.5)
    assert [(t.token, t.token_bytes, t.logprob) for t in entry.top] == [
        ("a", b"a", -0.5),
        ("\ufffd", SMILE[:1], -1.5),
        ("<|im_end|>", b"<|im_end|>", -3.0),
    ]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.text("ab\u00e9\U0001f600", max_size=15),
    st.lists(st.text("ab\u00e9", min_size=1, max_size=3), max_size=2),
    st.integers(1, 30),
)
def test_text_and_logprobs_agree_however_an_answer_ends(
    loaded: LoadedModel, text: str, stop: list[str], max_tokens: int
) -> None:
    deltas = feed(make(loaded, max_tokens=max_tokens, stop=tuple(stop)), text.encode())
    check_form(deltas)
    seen = text.encode()[: deltas[-1].num_completion_tokens].decode(errors="ignore")
    found = [seen.index(s) + len(s) for s in stop if s in seen]
    if found:
        assert (
            text_of(deltas)
            == seen[
                : min(
                    seen.index(s)
                    for s in stop
                    if s in seen and seen.index(s) + len(s) == min(found)
                )
            ]
        )
        assert deltas[-1].finish_reason is FinishReason.STOP
        assert bytes_of(deltas) == text_of(deltas).encode()
    else:
        assert text_of(deltas) == seen
        num_bytes = min(len(text.encode()), max_tokens)
        assert bytes_of(deltas) == text.encode()[:num_bytes]
    for entry, place in zip(logprobs_of(deltas), range(100), strict=False):
        assert entry.logprob == -place, "each token has its own number"
