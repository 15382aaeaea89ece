"""Holds back a block of calls that begins inside of reasoning until it is known for what it is.

Models think about calls as well as make them there: only whole calls of tools that exist count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlx_server.parsers.tools.call import (
    BlockNews,
    BlockReader,
    CallEnd,
    CallEvent,
    CallHead,
    NotACall,
    Tools,
)


class HeldBlock:
    def __init__(self, reader: BlockReader, start_marker: str, tools: Tools) -> None:
        self._reader = reader
        self._raw = start_marker
        self._names = {tool["function"]["name"] for tool in tools}
        self._events: list[CallEvent] = []

    def feed(self, text: str) -> BlockNews:
        news = self._reader.feed(text)
        self._raw += text
        self._events += news.events
        if news.rest is None:
            return BlockNews(())
        return BlockNews(self._decide(self._raw[: len(self._raw) - len(news.rest)]), news.rest)

    def finish(self) -> Sequence[CallEvent]:
        self._events += self._reader.finish()
        return self._decide(self._raw)

    def _decide(self, raw: str) -> Sequence[CallEvent]:
        names = [event.name for event in self._events if isinstance(event, CallHead)]
        if not self._names.issuperset(names):
            return [NotACall(raw)]
        return list(whole_calls(self._events))


def whole_calls(events: Sequence[CallEvent]) -> Iterator[CallEvent]:
    """The events without those of calls that broke off."""
    call: list[CallEvent] = []
    for event in events:
        if isinstance(event, NotACall):
            call = []
            yield event
        else:
            call.append(event)
        if isinstance(event, CallEnd):
            yield from call
            call = []
