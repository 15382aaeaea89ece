"""What the parser of an answer and the grammar of its calls must know of a tool format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools.call import BlockReader, ParsedCall, Tools

CallsRule = Callable[[LarkGrammar, Tools, bool], str]
"""(grammar to add rules to, tools, is_parallel) -> the expression to begin with."""

MakeReader = Callable[[Tools], BlockReader]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls stand in a model's text.

    `make_reader` reads a block of them as it comes; `other_starts` are markers that begin one too,
    each with what reads on from behind it. `calls_rule` is the grammar of all calls of an
    answer, their markers included: of one, or of one or more if `is_parallel`.
    """

    tool_call_start: str
    tool_call_end: str
    parse_tool_call: Callable[[str, Tools], list[ParsedCall]]
    make_reader: MakeReader
    calls_rule: CallsRule | None = None
    other_starts: Mapping[str, MakeReader] = field(default_factory=dict)

    @property
    def readers(self) -> Mapping[str, MakeReader]:
        """What reads on behind each marker that begins calls."""
        return {self.tool_call_start: self.make_reader, **self.other_starts}
