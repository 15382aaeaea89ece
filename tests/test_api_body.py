"""What becomes of a body's bytes before anybody looks at its fields."""

from __future__ import annotations

import pytest

from mlx_server.api.body import MAX_CONTAINERS, decode_object
from mlx_server.errors import InvalidRequest


def test_a_body_of_very_many_objects_is_refused_before_it_is_read() -> None:
    body = b'{"a":[' + b"{}," * MAX_CONTAINERS

    with pytest.raises(InvalidRequest, match=f"at most {MAX_CONTAINERS} objects and lists"):
        decode_object(body)


def test_a_long_text_is_none_of_many_objects() -> None:
    text = "x" * (2 * MAX_CONTAINERS)

    assert decode_object(b'{"a":"%s"}' % text.encode()) == {"a": text}
