"""Images through the whole server, on tiny models that really look at them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlx_server.config import EngineConfig, MediaLimits
from tests.picture_server import content, hang, picture_server
from tests.pictures import data_url, png
from tests.scripted_server import CHAT, Body, Served
from tests.tiny.checkpoints import tiny_gemma3, tiny_llama, tiny_qwen3_vl
from tests.tiny_server import tiny_server

RED, BLUE = data_url(png("red")), data_url(png("blue"))
PICTURES = {
    "/red.png": content(png("red")),
    "/page.html": content(b"<html></html>", "text/html"),
    "/slow.png": hang,
}


@pytest.fixture(params=[tiny_gemma3, tiny_qwen3_vl], ids=["gemma3", "qwen3_vl"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path: Path = request.param(tmp_path / "m")
    return path


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    config = EngineConfig(media=MediaLimits(fetch_timeout_s=1.0, allow_private_urls=True))
    with tiny_server(folder, engine_config=config) as served:
        yield served


def image(url: str, kind: str = "image_url") -> Body:
    return {"type": kind, "image_url": {"url": url} if kind == "image_url" else url}


def text(words: str) -> Body:
    return {"type": "text", "text": words}


def user(*parts: Body) -> Body:
    return {"role": "user", "content": list(parts)}


def ask(served: Served, *messages: Body, **fields: Any) -> Body:
    """Greedy tokens and their logprobs, which tell what the model saw better than words do."""
    return served.chat(
        messages=list(messages), temperature=0, max_tokens=6, logprobs=True, **fields
    )


def seen(body: Body) -> list[float]:
    return [entry["logprob"] for entry in body["choices"][0]["logprobs"]["content"]]


def fresh(folder: Path, *messages: Body) -> list[float]:
    with tiny_server(folder) as served:
        return seen(ask(served, *messages))


def test_b098_every_image_is_seen_in_its_place(served: Served) -> None:
    red_blue = ask(served, user(text("a "), image(RED), text(" b "), image(BLUE)))
    blue_red = ask(served, user(text("a "), image(BLUE), text(" b "), image(RED)))
    red_red = ask(served, user(text("a "), image(RED), text(" b "), image(RED)))
    one = ask(served, user(text("a "), image(RED), text(" b ")))
    assert len({str(seen(body)) for body in (red_blue, blue_red, red_red)}) == 3
    assert red_blue["usage"]["prompt_tokens"] > one["usage"]["prompt_tokens"] + 2


def test_input_image_is_the_same_as_image_url(served: Served) -> None:
    first = ask(served, user(text("what? "), image(RED)))
    second = ask(served, user(text("what? "), image(RED, "input_image")))
    assert seen(first) == pytest.approx(seen(second), abs=1e-4)


def test_b105_text_alone_is_answered_by_a_model_that_sees(served: Served) -> None:
    assert ask(served, user(text("hello")))["choices"][0]["finish_reason"] in ("stop", "length")


def test_b106_answers_follow_the_picture_and_not_the_cache(folder: Path, served: Served) -> None:
    expected = {url: fresh(folder, user(text("what? "), image(url))) for url in (RED, BLUE)}
    assert expected[RED] != pytest.approx(expected[BLUE], abs=1e-4)
    for url in (RED, BLUE, RED, BLUE):
        body = ask(served, user(text("what? "), image(url)))
        assert seen(body) == pytest.approx(expected[url], abs=1e-3)


def test_images_of_earlier_turns_are_reused_and_new_ones_seen(folder: Path, served: Served) -> None:
    first = user(text("what? "), image(RED))
    reply = {"role": "assistant", "content": "a red one"}
    second = user(text("and this? "), image(BLUE))
    ask(served, first)
    for messages in ((first, reply, second), (first, reply, user(text("and now?")))):
        body = ask(served, *messages)
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert seen(body) == pytest.approx(fresh(folder, *messages), abs=1e-3)


def test_images_come_by_http(served: Served) -> None:
    with picture_server(PICTURES) as pictures:
        url = f"{pictures.url}/red.png"
        by_http = ask(served, user(text("what? "), image(url)))
    assert seen(by_http) == pytest.approx(
        seen(ask(served, user(text("what? "), image(RED)))), abs=1e-4
    )


@pytest.mark.parametrize("stream", [False, True])
def test_b100_an_image_that_cannot_be_had_is_a_400_that_names_it(
    served: Served, stream: bool
) -> None:
    with picture_server(PICTURES) as pictures:
        for url in (f"{pictures.url}/{path}" for path in ("absent", "page.html", "slow.png")):
            answer = served.client.post(
                CHAT,
                json={"messages": [user(text("a"), image(RED), image(url))], "stream": stream},
            )
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["param"].startswith("messages.0.content.2")
            assert url not in error["message"]


def test_b103_private_addresses_are_not_asked_by_default(folder: Path) -> None:
    with tiny_server(folder) as served, picture_server(PICTURES) as pictures:
        answer = served.client.post(
            CHAT, json={"messages": [user(image(f"{pictures.url}/red.png"))]}
        )
        assert answer.status_code == 400
        assert pictures.seen == []


def test_an_image_for_a_text_model_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    with tiny_server(tiny_llama(tmp_path / "m")) as served, picture_server(PICTURES) as pictures:
        answer = served.client.post(
            CHAT, json={"messages": [user(text("a"), image(f"{pictures.url}/red.png"))]}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("messages.0.content.1")
        assert pictures.seen == []
