from __future__ import annotations

from mlx_server.api.responses_tokens import ContentTokens
from mlx_server.engine.sequence import TokenLogprob


def token(text: str | bytes) -> TokenLogprob:
    data = text if isinstance(text, bytes) else text.encode()
    return TokenLogprob(data.decode(errors="replace"), data, -1.0)


def taken(tokens: ContentTokens, text: str) -> list[str]:
    return [found.token for found in tokens.take(text)]


def test_tokens_before_the_text_are_passed_over_and_those_behind_it_kept() -> None:
    tokens = ContentTokens()
    tokens.add([token(text) for text in ("</think>", "\n", "He", "llo", " <to")])

    assert taken(tokens, "Hello") == ["He", "llo"]

    tokens.add([token("y>")])
    assert taken(tokens, " <toy>") == [" <to", "y>"]


def test_a_token_whose_beginning_is_no_part_of_the_text_is_the_texts() -> None:
    tokens = ContentTokens()
    tokens.add([token("\n\nHe"), token("llo")])

    assert taken(tokens, "Hello") == ["\n\nHe", "llo"]


def test_a_token_that_the_end_of_a_piece_cuts_is_that_pieces() -> None:
    tokens = ContentTokens()
    tokens.add([token("Hello"), token(" you")])

    assert taken(tokens, "Hel") == ["Hello"]
    assert taken(tokens, "lo you") == [" you"]


def test_text_with_replaced_characters_has_all_tokens_there_are() -> None:
    tokens = ContentTokens()
    tokens.add([token(b"a\xff"), token(b"b")])

    assert len(tokens.take("a\ufffdb")) == 2


def test_dropped_tokens_belong_to_no_text() -> None:
    tokens = ContentTokens()
    tokens.add([token("Hello")])
    tokens.drop()

    assert taken(tokens, "Hello") == []
