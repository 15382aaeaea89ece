"""A text that cannot fit is refused at once, however large it is."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.scripted_server import CHAT
from tests.tiny.checkpoints import tiny_llama
from tests.tiny_server import tiny_server

PROMPT_CHARS = 52_000_000


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_prompt_of_52_megabytes_is_a_400_before_it_is_tokenised(
    path: str, tmp_path: Path
) -> None:
    text = "a b c d " * (PROMPT_CHARS // 8)
    prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    with tiny_server(tiny_llama(tmp_path / "m")) as served:
        served.chat(max_tokens=1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer = served.client.post(path, json=prompt)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.json()["error"]["param"] == ("messages" if path == CHAT else "prompt")
    # the client's copies of the text are in this process too: five on either side
    assert (after - before) * 1024 < 12 * PROMPT_CHARS
