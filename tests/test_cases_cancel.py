"""Requests ended by somebody else than their clients, through the whole server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mlx_server.config import ServerConfig
from tests.scripted import Script
from tests.scripted_server import CHAT, Served, chat_body, scripted_server, wait_for
from tests.worker_harness import TOKENS_AHEAD

HEADER = {"x-request-id": "mine/1"}


@pytest.fixture
def served(script: Script, other: Script, tmp_path: Path) -> Iterator[Served]:
    config = ServerConfig(heartbeat_s=0.05)
    with scripted_server(tmp_path, config=config, m=script, b=other) as served:
        yield served
        script.gate.set()
        other.gate.set()


def requests(served: Served) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = served.client.get("/v1/requests").json()["data"]
    return entries


def states(served: Served) -> list[str]:
    return [entry["state"] for entry in requests(served)]


def test_a_cancelled_answer_stops_and_its_state_is_kept(served: Served, script: Script) -> None:
    script.token_s = 0.005
    script.say(*["x"] * 5000)
    script.say("fine")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(served.client.post, CHAT, json=chat_body(), headers=HEADER)
        wait_for(lambda: any(entry["num_completion_tokens"] > 3 for entry in requests(served)))
        (entry,) = requests(served)
        assert (entry["request_id"], entry["state"], entry["model"]) == ("mine/1", "decode", "m")

        answer = served.client.delete("/v1/requests/mine/1")
        num_tokens = script.num_tokens

        assert answer.status_code == 200
        assert asked.result().status_code == 409
    assert requests(served) == []
    wait_for(lambda: served.engine.status().num_running == 0)
    assert script.num_tokens <= num_tokens + TOKENS_AHEAD
    body = served.chat()
    assert body["choices"][0]["message"]["content"] == "fine"
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_all_prompts_and_choices_go_together_from_the_queue(served: Served, script: Script) -> None:
    script.say("fine")
    served.chat()
    script.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(served.chat)
        wait_for(lambda: served.engine.status().num_running == 1)
        body = {"prompt": ["a", "b"], "n": 2, "model": "m"}
        queued = pool.submit(served.client.post, "/v1/completions", json=body)
        wait_for(lambda: len(requests(served)) == 2)
        served.client.delete(f"/v1/requests/{requests(served)[1]['id']}").raise_for_status()
        assert queued.result().status_code == 409
        script.gate.set()
        assert first.result()["choices"][0]["message"]["content"] == "fine"
    wait_for(lambda: served.engine.status().num_waiting == 0)
    assert script.log.count("prefill") == 2


def test_a_request_is_cancelled_while_its_model_is_loaded(served: Served, other: Script) -> None:
    served.chat(model="m")
    other.load_s = 0.5
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(served.client.post, CHAT, json=chat_body(model="b"))
        wait_for(lambda: states(served) == ["loading"])
        served.client.delete(f"/v1/requests/{requests(served)[0]['id']}").raise_for_status()
        assert asked.result().status_code == 409
        assert served.engine.status().loading == "b", "nobody had to wait for the load"


def test_a_stream_tells_of_the_queue_and_of_the_swap_as_they_are(
    served: Served, script: Script, other: Script
) -> None:
    script.say("m")
    other.say("b")
    other.load_s = 0.3
    served.chat(model="m")
    script.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        before = [pool.submit(served.chat, model="m") for _ in range(2)]
        wait_for(lambda: len(requests(served)) == 2)
        body = chat_body(model="b", stream=True)
        comments = []
        with served.client.stream("POST", CHAT, json=body) as stream:
            for line in stream.iter_lines():
                if line.startswith(":"):
                    comments.append(line)
                    script.gate.set()
        for asked in before:
            asked.result()
    assert comments[0] == ": queued 2"
    assert ": loading" in comments
