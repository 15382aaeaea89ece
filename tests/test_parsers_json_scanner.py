from __future__ import annotations

import json
from typing import Any

import pytest

from mlx_server.parsers.json_scanner import MAX_DEPTH, JsonScanner


def scan(text: str, *, piece: int = 1 << 20) -> tuple[str, int, JsonScanner]:
    """The repaired text, how far the scanner came, and the scanner."""
    scanner = JsonScanner()
    out, num_read = "", 0
    for start in range(0, len(text), piece):
        scanned = scanner.feed(text[start : start + piece])
        out += scanned.text
        num_read += scanned.end
        if scanner.is_complete or scanner.is_broken:
            break
    return out, num_read, scanner


VALUES = [
    "{}",
    "[ ]",
    '{"a" : [1, -2.5e+3, 0, true, false, null, ""], "b": {"c": {"d": []}}}',
    '"braces } ] in \\" a string"',
    '["\\u00e9\\n\\/\\\\", "é😀"]',
]


@pytest.mark.parametrize("text", VALUES)
@pytest.mark.parametrize("piece", [1, 2, 3, 1000])
def test_valid_json_comes_out_as_it_is_and_ends_where_it_ends(text: str, piece: int) -> None:
    out, num_read, scanner = scan(text + "}] x", piece=piece)
    assert scanner.is_complete
    assert (out, num_read) == (text, len(text))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'"\d+\.\w"', r"\d+\.\w"),
        (r'"it\'s"', "it's"),
        (r'"\u12 \uZ \u"', r"\u12 \u" + "Z " + r"\u"),
        (r'"C:\Users\\x"', r"C:\Users\x"),
        ('"two\nlines\tand\x00"', "two\nlines\tand\x00"),
        ('"\\\n"', "\\\n"),
    ],
)
@pytest.mark.parametrize("piece", [1, 2, 1000])
def test_b073_strings_are_repaired(written: str, meant: Any, piece: int) -> None:
    out, _, scanner = scan(written, piece=piece)
    assert scanner.is_complete
    assert json.loads(out) == meant


@pytest.mark.parametrize(
    ("text", "num_good"),
    [
        ("{,}", 1),
        ("{1:2}", 1),
        ('{"a" 1}', 5),
        ('{"a":1,}', 7),
        ("[1,]", 3),
        ("[1 2]", 3),
        ("[}", 1),
        ("[01]", 3),
        ("[1.]", 3),
        ("[+1]", 3),
        ("[NaN]", 1),
        ("[nil]", 4),
        ("[True]", 1),
        ("'a'", 0),
        ("}", 0),
        ("[" * (MAX_DEPTH + 1), MAX_DEPTH),
        ("[" + "9" * 5000 + "]", 5001),
    ],
)
@pytest.mark.parametrize("piece", [1, 1000000])
def test_what_is_no_json_breaks_at_the_character_that_cannot_be_there(
    text: str, num_good: int, piece: int
) -> None:
    _, num_read, scanner = scan(text, piece=piece)
    assert scanner.is_broken and not scanner.is_complete
    assert num_read == num_good


@pytest.mark.parametrize("text", ["", "{", '{"a', '{"a":', '{"a":1', "[tru", '"\\', '"\\u0', "12"])
def test_an_unfinished_value_is_neither_complete_nor_broken(text: str) -> None:
    _, num_read, scanner = scan(text)
    assert not scanner.is_complete and not scanner.is_broken
    assert num_read == len(text)


def test_text_comes_out_before_the_value_ends() -> None:
    scanner = JsonScanner()
    assert scanner.feed('{"text": "some').text == '{"text": "some'
    assert scanner.feed(" words").text == " words"
