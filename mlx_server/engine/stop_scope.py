"""Stop strings for models that reason: what they only think of does not end the answer."""

from __future__ import annotations

from mlx_server.engine.stop import StopMatcher
from mlx_server.parsers.segments import Kind, Segment, Segmenter


class StopBehindReasoning(StopMatcher):
    """Lets reasoning and its tags pass; a stop string does not reach from one part to another."""

    def __init__(self, stop: tuple[str, ...], segmenter: Segmenter) -> None:
        super().__init__(stop)
        self._segmenter = segmenter

    def feed(self, text: str) -> str:
        return "".join(map(self._let_out, self._segmenter.feed(text)))

    def finish(self) -> str:
        out = "".join(map(self._let_out, self._segmenter.finish()))
        return out + super().finish()

    def _let_out(self, segment: Segment) -> str:
        if self.is_stopped:
            return ""
        if segment.kind is Kind.REST:
            return super().feed(segment.text)
        return super().finish() + segment.text
