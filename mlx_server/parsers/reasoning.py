"""Tells a model's reasoning from the rest of its text while it is being written.

Knows nothing of tools: what it calls the rest goes on to whoever looks for calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlx_server.parsers.harmony import HarmonySegmenter
from mlx_server.parsers.harmony_marks import MARKS
from mlx_server.parsers.marker import MarkerSplitter
from mlx_server.parsers.names import AUTO, NONE
from mlx_server.parsers.segments import Kind, Segment, Segmenter

HARMONY = "harmony"
MAX_LEADING_SPACE = 256


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Any of `starts` opens reasoning, any of `ends` closes it; `silent` marks are never shown.

    Tags that are text like any other count only `at_start`: further on they are talked about.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    silent: tuple[str, ...] = ()
    at_start: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.starts, *self.ends, *self.silent)


REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "think": ReasoningFormat(("<think>", "<thinking>"), ("</think>", "</thinking>"), at_start=True),
    "seed": ReasoningFormat(("<seed:think>",), ("</seed:think>",), at_start=True),
    "longcat": ReasoningFormat(("<longcat_think>",), ("</longcat_think>",), at_start=True),
    "granite": ReasoningFormat(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
        at_start=True,
    ),
    "mistral": ReasoningFormat(("[THINK]",), ("[/THINK]",)),
    "cohere": ReasoningFormat(
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "gemma4": ReasoningFormat(("<|channel>thought",), ("<channel|>",)),
    "solar_open": ReasoningFormat(
        ("<|think|>",), ("<|end|>",), ("<|begin|>assistant", "<|content|>")
    ),
    "xtml": ReasoningFormat(
        ("<|open|>think<|sep|>",),
        ("<|close|>think<|sep|>",),
        ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    HARMONY: ReasoningFormat(("<|channel|>analysis<|message|>",), ("<|end|>",), MARKS),
}


# In this order: some marks stand in several templates.
TEMPLATE_MARKS: Sequence[tuple[str, tuple[str, ...]]] = (
    (HARMONY, ("<|channel|>", "<|message|>")),
    ("gemma4", ("<channel|>",)),
    ("solar_open", ("<|think|>", "<|begin|>")),
    ("cohere", ("<|START_THINKING|>",)),
    ("mistral", ("[THINK]",)),
    ("seed", ("<seed:think>",)),
    ("longcat", ("<longcat_think>",)),
    ("xtml", ("<|open|>", "<|sep|>")),
    ("granite", ("my thought process:",)),
    ("think", ("<think>",)),
    ("think", ("</think>",)),
    ("think", ("<thinking>",)),
)


def detect_reasoning_format(chat_template: str | None) -> str | None:
    """The name in REASONING_FORMATS of what the model writes, by the marks in its template."""
    for name, marks in TEMPLATE_MARKS:
        if chat_template and all(mark in chat_template for mark in marks):
            return name
    return None


def make_segmenter(reasoning_format: str, *, is_reasoning: bool) -> Segmenter:
    """`is_reasoning` tells that the prompt has opened the reasoning."""
    if reasoning_format == HARMONY:
        return HarmonySegmenter(is_reasoning=is_reasoning)
    return TagSegmenter(REASONING_FORMATS[reasoning_format], is_reasoning=is_reasoning)


def reasoning_format_of(asked_for: str, chat_template: str | None) -> str | None:
    """The format that a user has asked for, who may leave it to the template or want none."""
    if asked_for == AUTO:
        return detect_reasoning_format(chat_template)
    return None if asked_for == NONE else asked_for


def opens_reasoning(reasoning_format: str, prompt: str) -> bool:
    """Whether the prompt's text ends inside of reasoning that has just begun."""
    prompt = prompt.rstrip()
    return any(prompt.endswith(tag.rstrip()) for tag in REASONING_FORMATS[reasoning_format].starts)


class TagSegmenter:
    """Finds reasoning by its tags.

    Reasoning that is never closed goes on to the end. A tag that opens what the prompt has opened,
    or closes what is not open, is taken for a slip where a text begins.
    """

    def __init__(self, form: ReasoningFormat, *, is_reasoning: bool) -> None:
        self.is_reasoning = is_reasoning
        self._form = form
        self._start: str | None = ""  # up to the first tag or text; None behind it
        self._splitter = MarkerSplitter()
        self._segments: list[Segment] = []

    def feed(self, text: str) -> Sequence[Segment]:
        rest: str | None = text
        while rest:
            rest = self._read(rest) if self._start is None else self._read_start(rest)
        return self._take()

    def finish(self) -> Sequence[Segment]:
        if self._start is not None:
            self._add(self._start)
        else:
            self._add(self._splitter.finish())
        return self._take()

    def _read_start(self, text: str) -> str | None:
        """Look for a tag where the answer begins; return the text behind it."""
        assert self._start is not None
        text = self._start + text
        begun = text.lstrip()
        num_spaces = len(text) - len(begun)
        tags = (*self._form.starts, *(() if self.is_reasoning else self._form.ends))
        if num_spaces <= MAX_LEADING_SPACE:
            for tag in tags:
                if begun.startswith(tag):
                    self._pass(text[:num_spaces] + tag, is_reasoning=tag in self._form.starts)
                    return begun[len(tag) :]
            if any(tag.startswith(begun) for tag in tags):
                self._start = text
                return None
        self._go_on()
        return text

    def _read(self, text: str) -> str | None:
        """Read up to the next tag; return the text behind it."""
        split = self._splitter.feed(text)
        self._add(split.before)
        if split.behind is not None:
            self._pass(split.marker, is_reasoning=split.marker in self._form.starts)
        return split.behind

    def _pass(self, mark: str, *, is_reasoning: bool) -> None:
        self._segments.append(Segment(Kind.MARK, mark))
        self.is_reasoning = is_reasoning
        self._go_on()

    def _go_on(self) -> None:
        self._start = None
        if not self._form.at_start:
            self._splitter = MarkerSplitter(*self._form.marks)
        elif self.is_reasoning:
            self._splitter = MarkerSplitter(*self._form.ends)
        else:
            self._splitter = MarkerSplitter()

    def _add(self, text: str) -> None:
        if text:
            kind = Kind.REASONING if self.is_reasoning else Kind.REST
            self._segments.append(Segment(kind, text))

    def _take(self) -> Sequence[Segment]:
        segments, self._segments = self._segments, []
        return segments
