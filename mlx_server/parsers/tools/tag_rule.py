"""The grammar of calls that are written in tags."""

from __future__ import annotations

from collections.abc import Iterator

from mlx_server.parsers.lark import ANY_TEXT, LarkGrammar
from mlx_server.parsers.tools.call import Tools
from mlx_server.parsers.tools.tag_marks import TagMarks
from mlx_server.parsers.tools.text_pattern import text_pattern
from mlx_server.parsers.tools.value_schema import STRING, ValueSchema, arguments_of

# Models of one format differ in where they break lines, and readers pass over it.
LINE_BREAK = r'"\n"'
GAP = f"{LINE_BREAK}?"


class TagRule:
    def __init__(self, marks: TagMarks, grammar: LarkGrammar) -> None:
        self._marks = marks
        self._grammar = grammar

    def calls(self, tools: Tools, is_parallel: bool) -> str:
        marks = self._marks
        calls = [self._call(name, schema) for name, schema in arguments_of(tools).items()]
        call = self._grammar.rule(self._grammar.one_of(*calls))
        if not marks.shares_block:
            call = self._grammar.rule(self._in_block(call))
        many = f"{call} ({GAP} {call})*" if is_parallel else call
        return self._in_block(many) if marks.shares_block else many

    def _in_block(self, calls: str) -> str:
        marks = self._marks
        if not marks.block_start:
            return calls
        start, end = map(self._grammar.literal, (marks.block_start, marks.block_end))
        first_gap = GAP if marks.call.start else ""
        return f"{start} {first_gap} {calls} {GAP} {end}"

    def _call(self, name: str, schema: ValueSchema) -> str:
        parts = [self._grammar.literal(self._marks.call.written.format(name=name))]
        required = schema.required()
        for key, value in schema.members():
            argument = f"{GAP} {self._argument(key, value)}"
            parts.append(argument if key in required else f"({argument})?")
        if self._marks.call_end:
            parts += [GAP, self._grammar.literal(self._marks.call_end)]
        return self._grammar.rule(" ".join(parts))

    def _argument(self, key: str, schema: ValueSchema) -> str:
        marks = self._marks
        is_text = "{is_text}" not in marks.key.written or schema.types == STRING
        head = marks.key.written.format(name=key, is_text="true" if is_text else "false")
        parts = [self._grammar.literal(head)]
        if marks.value_start:
            parts += [GAP, self._grammar.literal(marks.value_start)]
        return " ".join([*parts, *self._value(schema, marks.value_end.format(key=key), is_text)])

    def _value(self, schema: ValueSchema, end: str, is_text: bool) -> Iterator[str]:
        opening, closing = self._marks.wrapping
        if opening:
            yield self._grammar.literal(opening)
        if schema.types == STRING and schema.texts:
            gap = GAP if self._marks.has_own_line else ""
            texts = self._grammar.one_of(*map(self._grammar.literal, schema.texts))
            yield f"{gap} {texts} {gap} {self._grammar.literal(closing + end)}"
        elif schema.types == STRING or (is_text and schema.takes_any_text):
            yield self._text(text_pattern(schema), closing + end)
        else:
            value = self._grammar.json(schema.standalone)
            yield f"{GAP} {value} {GAP} {self._grammar.literal(closing + end)}"

    def _text(self, pattern: str, end: str) -> str:
        if not self._marks.has_own_line or pattern == ANY_TEXT:
            return self._grammar.text_up_to(end, pattern)
        # the breaks do not count, so a text with bounds must have them
        return f"{LINE_BREAK} {self._grammar.text_up_to(end, f'({pattern}) {LINE_BREAK}')}"
