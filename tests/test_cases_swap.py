"""Reported faults of servers like this one, replayed through the whole server: models, by name and
in turn.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlx_server.config import ServerConfig
from tests.scripted import Script
from tests.scripted_server import CHAT, Served, chat_body, scripted_server, wait_for

HEARTBEAT_S = 0.05


@pytest.fixture
def served(script: Script, other: Script, tmp_path: Path) -> Iterator[Served]:
    config = ServerConfig(heartbeat_s=HEARTBEAT_S)
    with scripted_server(tmp_path, config=config, m=script, b=other) as served:
        yield served
        script.gate.set()


def test_b115_a_running_stream_is_complete_before_another_model_is_loaded(
    served: Served, script: Script, other: Script
) -> None:
    script.token_s = 0.01
    script.say(*["A"] * 30)
    other.say("B")
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(served.stream, model="m")
        wait_for(lambda: script.num_tokens > 2)
        second = pool.submit(served.chat, model="b")
        wait_for(lambda: served.engine.status().num_waiting == 1)
        third = pool.submit(served.chat, model="m")
        assert first.result().content == "A" * 30
        assert second.result()["choices"][0]["message"]["content"] == "B"
        assert second.result()["model"] == "b"
        assert third.result()["choices"][0]["message"]["content"] == "A" * 30
    # the third came while the model was in memory
    assert served.loader.loads == ["m", "b"]
    assert script.log == ["load m", "prefill", "prefill", "load b"]


def test_b117_nothing_of_a_model_is_left_after_a_swap(served: Served) -> None:
    served.chat(model="m")
    runner = served.engine._worker._slot.runner
    assert runner is not None
    watched = [weakref.ref(runner.loaded.model), weakref.ref(runner.prefix_cache)]
    del runner
    served.chat(model="b")
    gc.collect()
    assert [w() for w in watched] == [None, None]


def test_b118_a_local_model_answers_to_all_its_names(
    served: Served, script: Script, tmp_path: Path
) -> None:
    script.say("fine")
    for name in ("m", str(tmp_path / "m"), "", None):
        assert served.chat(model=name)["model"] == "m"
    assert served.loader.loads == ["m"]


def test_no_request_names_a_path_that_was_not_given_at_start(
    served: Served, tmp_path: Path
) -> None:
    for name in (str(tmp_path), f"{tmp_path}/m/../b", "../m", "/etc", "./m"):
        answer = served.client.post(CHAT, json=chat_body(model=name))
        assert answer.status_code == 404, name


def test_a_model_that_cannot_be_loaded_is_a_503_and_the_next_request_works(
    served: Served, script: Script, other: Script, tmp_path: Path
) -> None:
    script.say("fine")
    served.chat()
    other.load_error = ValueError(f"weights missing in {tmp_path / 'b'}")
    answer = served.client.post(CHAT, json=chat_body(model="b"))
    assert answer.status_code == 503
    assert "weights missing" in answer.json()["error"]["message"]
    assert str(tmp_path) not in answer.text
    assert served.chat(model="m")["choices"][0]["message"]["content"] == "fine"


def test_b126_everything_else_answers_during_a_load_and_a_prefill(
    served: Served, other: Script
) -> None:
    served.chat()
    other.load_s = 0.6
    other.prefill_s = 0.6
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(served.chat, model="b")
        began = time.monotonic()
        while not pending.done():
            asked = time.monotonic()
            served.client.get("/health").raise_for_status()
            served.client.get("/v1/models").raise_for_status()
            assert served.client.post(CHAT, content=b"{").status_code == 400
            assert time.monotonic() - asked < 1.5
        assert time.monotonic() - began > 0.5


def test_without_a_model_the_one_that_is_being_loaded_answers(
    served: Served, script: Script, other: Script
) -> None:
    script.say("A")
    other.say("B")
    served.chat()
    other.load_s = 0.4
    with ThreadPoolExecutor(2) as pool:
        named = pool.submit(served.chat, model="b")
        wait_for(lambda: served.engine.status().loading == "b")
        assert served.engine.status().model is None
        unnamed = pool.submit(served.chat)
        assert named.result()["model"] == unnamed.result()["model"] == "b"
    assert served.chat()["model"] == "b", "and afterwards the one that is loaded"
    assert served.loader.loads == ["m", "b"]


def test_a_checkpoint_with_code_of_its_own_is_refused_and_disturbs_nothing(
    served: Served, script: Script, tmp_path: Path
) -> None:
    script.say("fine")
    served.chat()
    config = tmp_path / "b" / "config.json"
    config.write_text(config.read_text().replace("{", '{"model_file": "evil.py",', 1))
    answer = served.client.post(CHAT, json=chat_body(model="b"))
    assert answer.status_code == 503
    assert "--trust-remote-code" in answer.json()["error"]["message"]
    assert served.engine.status().model == "m"
    assert served.loader.loads == ["m"]


def test_concurrent_requests_for_two_models_all_get_their_own(
    served: Served, script: Script, other: Script
) -> None:
    script.say("A")
    other.say("B")
    barrier = threading.Barrier(12)

    def ask(model: str) -> tuple[str, str]:
        barrier.wait()
        body = served.chat(model=model)
        return body["model"], body["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, ["m", "b"] * 6))
    assert answers == [("m", "A"), ("b", "B")] * 6
