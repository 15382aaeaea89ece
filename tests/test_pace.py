"""What steps that ran say of those to come."""

from __future__ import annotations

from mlx_server.engine.pace import Pace


def test_a_cached_prompt_s_single_token_says_nothing_of_the_pace_of_long_ones() -> None:
    pace = Pace()
    pace.saw_prefill(128, 0.64)
    pace.saw_prefill(1, 0.08)
    assert pace.tokens_within(0.25) == 50
