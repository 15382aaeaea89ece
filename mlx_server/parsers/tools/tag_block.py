"""Reads a block of calls that are written in tags, as it comes."""

from __future__ import annotations

from mlx_server.parsers.tools.call import Tools, to_json
from mlx_server.parsers.tools.stepped_block import SteppedBlock
from mlx_server.parsers.tools.tag_marks import TagMarks, ValueReader
from mlx_server.parsers.tools.value_schema import UNDECLARED, arguments_of


class TagBlockReader(SteppedBlock):
    """A call is complete with its own end mark, or with that of the block.

    `is_bare`: it begins behind the start mark of a call instead of that of a block, which calls
    nothing but a declared tool: the mark alone is too common in prose.
    """

    def __init__(self, marks: TagMarks, tools: Tools, *, is_bare: bool = False) -> None:
        start = marks.call.start if is_bare else marks.block_start or marks.call.start
        super().__init__(start, marks.block_end)
        self._marks = marks
        self._schemas = arguments_of(tools)
        self._must_be_declared = is_bare
        self._schema = UNDECLARED
        self._keys: set[str] = set()
        self._key = ""
        self._says_text: bool | None = None
        self._value: ValueReader | None = None
        begins_in_call = is_bare or not marks.block_start or not marks.call.start
        self.step = self._read_name if begins_in_call else self._next_call

    def _next_call(self) -> bool:
        mark = self.mark(self._marks.call.start, self._marks.block_end)
        if mark is None:
            return False
        if not mark:
            return self.leave()
        if mark == self._marks.block_end:
            return self.end()
        self.step = self._read_name
        return True

    def _read_name(self) -> bool:
        match = self.head(self._marks.call)
        if match is None:
            return False
        name = match["name"]
        if self._must_be_declared and name not in self._schemas:
            return self.leave()
        self.begin_call(name)
        self._schema = self._schemas.get(name, UNDECLARED)
        self._keys.clear()
        self.step = self._next_value
        return True

    def _next_value(self) -> bool:
        marks = self._marks
        mark = self.mark(marks.key.start, marks.call_end, marks.block_end)
        if mark is None:
            return False
        if not mark:
            return self.leave()
        if mark == marks.key.start:
            self.step = self._read_key
            return True
        self.add_arguments("}" if self._keys else "{}")
        self.complete_call()
        self.step = self._next_call
        return self.end() if mark == marks.block_end else True

    def _read_key(self) -> bool:
        match = self.head(self._marks.key)
        if match is None:
            return False
        self._key = match["name"]
        if self._key in self._keys:
            return self.leave()
        is_text = match.groupdict().get("is_text")
        self._says_text = None if is_text is None else is_text == "true"
        self.step = self._begin_value
        return True

    def _begin_value(self) -> bool:
        if self._marks.value_start:
            mark = self.mark(self._marks.value_start)
            if mark is None:
                return False
            if not mark:
                return self.leave()
        separator = ", " if self._keys else "{"
        self._keys.add(self._key)
        self.add_arguments(f"{separator}{to_json(self._key)}: ")
        schema = self._schema.member(self._key)
        self._value = self._marks.value_reader(self._key, schema, self._says_text)
        self.step = self._read_value
        return True

    def _read_value(self) -> bool:
        assert self._value is not None
        piece = self._value.feed(self.text[self.at :])
        self.take(len(self.text) - len(piece.behind or ""))
        self.add_arguments(piece.json)
        if piece.behind is None:
            return False
        self.step = self._next_value
        return True
