"""How long the steps of the loaded model take, learned from those that ran."""

from __future__ import annotations

from dataclasses import dataclass

WEIGHT_OF_NEWEST = 0.3
# Smaller chunks cost about as much as this one.
MIN_CHUNK = 16


@dataclass(slots=True)
class Pace:
    """`None` until a step has been seen. A slower step than expected counts at once and in full."""

    prefill_s_per_token: float | None = None

    def saw_prefill(self, num_tokens: int, seconds: float) -> None:
        if num_tokens > 0:
            seconds_per_token = seconds / max(num_tokens, MIN_CHUNK)
            self.prefill_s_per_token = _blend(self.prefill_s_per_token, seconds_per_token)

    def tokens_within(self, seconds: float) -> int | None:
        """How many prompt tokens can run in that time; None if that is not known yet."""
        if self.prefill_s_per_token is None:
            return None
        return max(int(seconds / max(self.prefill_s_per_token, 1e-9)), 0)

    def prefill_s(self, num_tokens: int) -> float:
        return num_tokens * (self.prefill_s_per_token or 0.0)


def _blend(old: float | None, new: float) -> float:
    if old is None or new > old:
        return new
    return old + WEIGHT_OF_NEWEST * (new - old)
