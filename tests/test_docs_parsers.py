"""The examples of docs/parsers.md are read as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mlx_server.parsers.answer import Answer
from mlx_server.parsers.output import OutputParser
from mlx_server.parsers.reasoning import REASONING_FORMATS
from mlx_server.parsers.tools import TOOL_FORMATS

DOC = (Path(__file__).parent.parent / "docs" / "parsers.md").read_text()
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"s": {"type": "string"}, "n": {"type": "integer"}},
        },
    },
}
# They need line breaks, which a table cannot hold.
OF_SEVERAL_LINES = {"gemma_code", "deepseek_v3"}
CALL = re.compile(r"`f (\{.*?\})`")


def rows(heading: str) -> dict[str, list[str]]:
    section = DOC.split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if "| `" in line]
    return {row[0].strip(" `"): [c.strip().replace("\\|", "|") for c in row[1:]] for row in cells}


def test_every_format_is_in_the_tables() -> None:
    assert set(rows("Tool calls")) == set(TOOL_FORMATS)
    assert set(rows("Reasoning")) == set(REASONING_FORMATS)


@pytest.mark.parametrize("name", sorted(set(TOOL_FORMATS) - OF_SEVERAL_LINES))
def test_the_first_example_of_a_format_gives_the_calls_beside_it(name: str) -> None:
    _, written, calls = rows("Tool calls")[name]
    example = re.findall(r"`([^`]+)`", written)[0]
    parser, answer = OutputParser(name, [TOOL]), Answer()
    answer.add([*parser.feed(example), *parser.finish()])
    answer.finish()
    assert answer.content is None
    expected = [json.loads(arguments) for arguments in CALL.findall(calls)]
    found = [json.loads(call.arguments) for call in answer.tool_calls]
    assert found
    assert found == expected[: len(found)]
