"""Requests in, events out, for any number of clients at once."""

from __future__ import annotations

import asyncio
import gc
import shutil
import weakref
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from mlx_server.config import EngineConfig
from mlx_server.engine.loader import load_checkpoint
from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    Delta,
    FinishReason,
    ImagePart,
    Prepared,
    Progress,
    SamplingParams,
    Sequence,
    Started,
    TextPart,
)
from mlx_server.errors import (
    EngineOverloaded,
    InvalidRequest,
    ModelNotFound,
)
from tests.engine_harness import (
    Client,
    go,
    hold_opening,
    make_engine,
    nobody,
    request,
    running_engine,
    until,
)
from tests.pictures import png
from tests.scripted import Script, ScriptedLoader, write_scripted_checkpoint


def test_an_answer_is_progress_then_a_start_then_text(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.say("one ", "two")
            client = await Client().read(running.engine, request("abcdefghij"))
        kinds = [kind for kind, _ in groupby(map(type, client.events))]
        assert kinds == [Progress, Prepared, Progress, Started, Delta]
        assert client.text() == "one two"
        assert client.started.num_prompt_tokens == 10
        assert client.deltas[-1].finish_reason is FinishReason.STOP

    go(main())


def test_many_requests_at_once_all_get_their_own(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            for i in range(12):
                script.say(*f"answer {i}")
            texts = await asyncio.gather(*(running.ask(f"question {i}") for i in range(12)))
        assert texts == [f"answer {i}" for i in range(12)]

    go(main())


def test_b014_an_unknown_model_is_refused_at_once(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            with pytest.raises(ModelNotFound):
                await running.engine.submit(request(model="no/such-model"), nobody)
            script.say("fine")
            assert await running.ask() == "fine"

    go(main())


def test_b118_all_names_of_the_loaded_model_are_it(
    script: Script, other: Script, tmp_path: Path
) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script, b=other) as running:
            for name in ("a", None, "", "short", str(tmp_path / "a"), "A"):
                client = await Client().read(running.engine, request(model=name))
                assert client.started.model == running.engine.catalog.resolve("a").id
            assert running.loader.loads == ["a"]
            await running.ask(model="b")
            client = await Client().read(running.engine, request(model=None))
            assert client.started.model == running.engine.catalog.resolve("b").id
            assert running.loader.loads == ["a", "b"]

    go(main())


def test_an_image_for_a_model_that_cannot_see_is_refused_at_once(
    script: Script, tmp_path: Path
) -> None:
    message = ChatMessage("user", (ImagePart("data:,", "messages.0.content.0"),))

    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            with pytest.raises(InvalidRequest) as raised:
                await running.engine.submit(
                    replace(request(), prompt=ChatPrompt((message,))), nobody
                )
            assert raised.value.param == "messages.0.content.0"

    go(main())


def test_a_full_queue_refuses_and_has_room_again(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, [tmp_path], EngineConfig(max_waiting=4), ScriptedLoader())
    with engine.admit(3):
        with pytest.raises(EngineOverloaded), engine.admit(2):
            pass
        with engine.admit(1), pytest.raises(EngineOverloaded), engine.admit(1):
            pass
        with engine.admit(1):
            pass
    with engine.admit(4), pytest.raises(EngineOverloaded), engine.admit(1):
        pass


def test_who_comes_alone_is_admitted_however_many_answers_it_wants(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, [tmp_path], EngineConfig(max_waiting=2), ScriptedLoader())
    with engine.admit(3), pytest.raises(EngineOverloaded), engine.admit(1):
        pass


def test_b047_n_answers_share_one_start_and_have_their_own_ends(
    script: Script, tmp_path: Path
) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.say(*"second")
            client = await Client().read(running.engine, request("abcdefgh", n=3))
        assert [client.text(i) for i in range(3)] == ["second"] * 3
        assert script.log.count("prefill") == 1, "the prompt runs once"
        assert client.started.num_prompt_tokens == 8
        ends = [d.index for d in client.deltas if d.finish_reason is not None]
        assert sorted(ends) == [0, 1, 2]
        first_delta = next(i for i, e in enumerate(client.events) if isinstance(e, Delta))
        assert all(isinstance(event, Delta) for event in client.events[first_delta:])

    go(main())


def test_b045_the_answers_of_a_seeded_request_differ_and_repeat(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    async def main() -> None:
        path = tiny_checkpoint("llama")
        engine = make_engine(tmp_path, [path], EngineConfig(), load_checkpoint)
        await engine.start()
        sampling = SamplingParams(temperature=1.5, seed=7)

        async def say(n: int) -> list[str]:
            asked = request("hello", path.name, n=n, max_tokens=12, sampling=sampling)
            client = await Client().read(engine, asked)
            return [client.text(i) for i in range(n)]

        three = await say(3)
        assert len(set(three)) == 3
        assert await say(3) == three
        assert await say(1) == three[:1]
        await engine.close()

    go(main())


def test_b045_without_a_seed_answers_differ(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    async def main() -> None:
        path = tiny_checkpoint("llama")
        engine = make_engine(tmp_path, [path], EngineConfig(), load_checkpoint)
        await engine.start()
        hot = SamplingParams(temperature=1.5)
        asked = [request("hello", path.name, max_tokens=12, sampling=hot) for _ in range(3)]
        texts = {(await Client().read(engine, one)).text() for one in asked}
        await engine.close()
        assert len(texts) == 3

    go(main())


def test_the_operator_s_limit_holds_where_the_client_sets_none(
    script: Script, tmp_path: Path
) -> None:
    async def main() -> None:
        config = EngineConfig(default_max_tokens=3)
        async with running_engine(tmp_path, config=config, a=script) as running:
            script.say(*["x"] * 50)
            assert await running.ask() == "xxx"
            assert await running.ask(max_tokens=5) == "xxxxx"

    go(main())


@pytest.mark.parametrize("max_tokens", [None, 5])
def test_the_operator_s_limit_stands_beside_what_the_client_asked_for(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_tokens: int | None
) -> None:
    async def main() -> None:
        config = EngineConfig(default_max_tokens=3)
        async with running_engine(tmp_path, config=config, a=script) as running:
            seen: list[Sequence] = []
            worker = await running.engine._opened_worker()
            monkeypatch.setattr(worker, "submit", seen.extend)
            _, task = running.begin(max_tokens=max_tokens)
            await until(lambda: bool(seen))
            task.cancel()
            asked = seen[0].request
            assert (asked.max_tokens, asked.default_max_tokens) == (max_tokens, 3)

    go(main())


def test_b115_a_turn_serves_all_that_came_before_it(
    script: Script, other: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = hold_opening(monkeypatch)

    async def main() -> None:
        async with running_engine(tmp_path, a=script, b=other) as running:
            script.say(*"aaaa")
            other.say(*"bbbb")
            script.say(*"cccc")
            begun = [running.begin(model=name) for name in "aba"]
            await until(lambda: len(running.engine._open) == 3)
            gate.set()
            clients = await asyncio.gather(*(task for _, task in begun))
            assert [client.text() for client in clients] == ["aaaa", "bbbb", "cccc"]
            ids = [running.engine.catalog.resolve(name).id for name in "aba"]
            assert [client.started.model for client in clients] == ids
            assert running.loader.loads == ["a", "b"]
            assert script.log == ["load a", "prefill", "prefill", "load b"]

    go(main())


def test_status_follows_the_model(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        script.load_s = 0.1
        async with running_engine(tmp_path, a=script) as running:
            engine = running.engine
            assert engine.status().state == "idle"
            running.close_gates()
            tasks = [running.begin()[1] for _ in range(3)]
            await until(lambda: engine.status().state == "loading")
            await until(lambda: engine.status().num_running == 1)
            assert (engine.status().state, engine.status().num_waiting) == ("ready", 2)
            running.open_gates()
            await asyncio.gather(*tasks)
            await until(lambda: engine.status().num_running == 0)
            assert engine.status().num_waiting == 0
        assert engine.status().state == "stopped"

    go(main())


def test_a_model_named_at_the_start_is_there_before_the_first_request(
    script: Script, tmp_path: Path
) -> None:
    async def main() -> None:
        path = write_scripted_checkpoint(tmp_path / "a")
        loader = ScriptedLoader(a=script)
        engine = make_engine(tmp_path, [path], EngineConfig(), loader)
        await engine.start("a")
        await until(lambda: engine.status().state == "ready")
        client = await Client().read(engine, request())
        await engine.close()
        assert not any(isinstance(e, Progress) and e.stage == "loading" for e in client.events)
        assert loader.loads == ["a"]

    go(main())


def test_a_loaded_model_serves_on_when_its_folder_has_gone(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.say("fine")
            await running.ask()
            shutil.rmtree(tmp_path / "a")
            for name in ("a", "short", None):
                assert await running.ask(model=name) == "fine"
            assert running.loader.loads == ["a"]

    go(main())


def test_nothing_outside_the_worker_holds_pictures_or_their_urls(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"data:image/png;base64,{b64encode(png()).decode()}"
    message = ChatMessage("user", (TextPart("what?"), ImagePart(url, "p")))

    async def main() -> None:
        path = write_scripted_checkpoint(tmp_path / "a", vision_config={"hidden_size": 1})
        engine = make_engine(tmp_path, [path], EngineConfig(), ScriptedLoader(a=script))
        await engine.start()
        submitted: list[Sequence] = []
        worker = await engine._opened_worker()
        monkeypatch.setattr(worker, "submit", submitted.extend)
        asked = replace(request(), prompt=ChatPrompt((message,)))
        reading = asyncio.create_task(Client().read(engine, asked))
        await until(lambda: bool(submitted))
        prompt = submitted[0].request.prompt
        assert isinstance(prompt, ChatPrompt)
        assert prompt.messages[0].content == (TextPart("what?"), ImagePart("", "p"))
        picture = weakref.ref(submitted[0].images[0].image)

        submitted.clear()
        gc.collect()

        assert picture() is None
        assert not reading.done()
        reading.cancel()
        await asyncio.wait([reading])
        await engine.close()

    go(main())
