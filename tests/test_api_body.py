"""What becomes of a body's bytes before anybody looks at its fields."""

from __future__ import annotations

import pytest

from mlx_server.api.body import MAX_CONTAINERS, decode_object, replace_lone_surrogates
from mlx_server.errors import InvalidRequest


def test_a_body_of_very_many_objects_is_refused_before_it_is_read() -> None:
    body = b'{"a":[' + b"{}," * MAX_CONTAINERS

    with pytest.raises(InvalidRequest, match=f"at most {MAX_CONTAINERS} objects and lists"):
        decode_object(body)


def test_a_long_text_is_none_of_many_objects() -> None:
    text = "x" * (2 * MAX_CONTAINERS)

    assert decode_object(b'{"a":"%s"}' % text.encode()) == {"a": text}


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (rb"\ud800", rb"\ufffd"),
        (rb"a\uDC00b", rb"a\ufffdb"),
        (rb"\ud83d\ude00", rb"\ud83d\ude00"),
        (rb"\ud83d\ud83d\ude00", rb"\ufffd\ud83d\ude00"),
        (rb"\ude00\ud83d", rb"\ufffd\ufffd"),
        (rb"\\ud800", rb"\\ud800"),
        (rb"\\\ud800", rb"\\\ufffd"),
        (rb"\\\\ud800\n\ud800", rb"\\\\ud800\n\ufffd"),
        (rb"\ud83d\\ude00", rb"\ufffd\\ude00"),
        (rb"\u00e9\"\ud800", rb"\u00e9\"\ufffd"),
    ],
)
def test_only_halves_of_characters_are_replaced(sent: bytes, read: bytes) -> None:
    assert replace_lone_surrogates(sent) == read
