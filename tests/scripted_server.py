"""The whole server on a real port, with models that follow scripts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from mlx_server.catalog import Catalog
from mlx_server.config import EngineConfig, ServerConfig
from mlx_server.engine.engine import Engine
from mlx_server.main import create_app
from tests.live_server import live_server
from tests.patience import HANG_S
from tests.scripted import Script, ScriptedLoader, write_scripted_checkpoint

CHAT = "/v1/chat/completions"
Body = dict[str, Any]


@dataclass
class Served:
    """`address` is where the server listens; `client` speaks to it as httpx does."""

    address: tuple[str, int]
    client: httpx.Client
    engine: Engine
    loader: ScriptedLoader

    def chat(self, **fields: Any) -> Body:
        """The answer to a chat; the request is the smallest one, with `fields` added."""
        answer = self.client.post(CHAT, json=chat_body(**fields))
        assert answer.status_code == 200, answer.text
        body: Body = answer.json()
        return body

    def stream(self, path: str = CHAT, **fields: Any) -> Stream:
        body = chat_body(**fields) if path == CHAT else fields
        answer = self.client.post(path, json={"stream": True, **body})
        assert answer.status_code == 200, answer.text
        return Stream.read(answer)


def chat_body(**fields: Any) -> Body:
    return {"messages": [{"role": "user", "content": "hi"}], **fields}


@dataclass
class Stream:
    """What a client puts together from the frames of one stream (of its choice 0)."""

    frames: list[Body] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    is_done: bool = False
    content: str = ""
    finish_reasons: list[str] = field(default_factory=list)
    tool_calls: dict[int, Body] = field(default_factory=dict)

    @classmethod
    def read(cls, answer: httpx.Response) -> Stream:
        assert answer.headers["content-type"].startswith("text/event-stream")
        stream = cls()
        for line in answer.text.split("\n"):
            if line.startswith(":"):
                stream.comments.append(line)
            elif line == "data: [DONE]":
                assert not stream.is_done, "[DONE] must come once"
                stream.is_done = True
            elif line:
                assert line.startswith("data: "), line[:80]
                assert not stream.is_done, "nothing may follow [DONE]"
                stream.add(json.loads(line[6:]))
        return stream

    def add(self, frame: Body) -> None:
        self.frames.append(frame)
        for choice in frame["choices"]:
            if choice["finish_reason"] is not None:
                self.finish_reasons.append(choice["finish_reason"])
            delta = choice.get("delta", {})
            self.content += delta.get("content") or choice.get("text") or ""
            for call in delta.get("tool_calls", ()):
                self._add_call(call)

    def _add_call(self, call: Mapping[str, Any]) -> None:
        known = self.tool_calls.setdefault(call["index"], {"arguments": ""})
        function = call["function"]
        known["arguments"] += function.get("arguments", "")
        if "id" in call:
            assert "id" not in known, "a call is introduced once"
            known |= {"id": call["id"], "type": call["type"], "name": function["name"]}

    @property
    def usage(self) -> Body | None:
        found = [frame["usage"] for frame in self.frames if frame.get("usage")]
        return found[-1] if found else None


@contextmanager
def scripted_server(
    folder: Path,
    *,
    config: ServerConfig | None = None,
    engine_config: EngineConfig | None = None,
    **scripts: Script,
) -> Iterator[Served]:
    """Serve one model for each script, by its name; the first one is the default."""
    paths = [
        write_scripted_checkpoint(
            folder / name, chat_template=script.chat_template, model_type=script.model_type
        )
        for name, script in scripts.items()
    ]
    config = replace(
        config or ServerConfig(),
        models=tuple(map(str, paths)),
        drain_s=0.0,
        cache_dir=folder / "cache",
        engine=engine_config or EngineConfig(),
    )
    loader = ScriptedLoader(**scripts)
    engine = Engine(config.engine, Catalog.from_config(config), load=loader)
    with live_server(create_app(config, engine), config) as address:
        base = f"http://{address[0]}:{address[1]}"
        with httpx.Client(base_url=base, timeout=HANG_S, trust_env=False) as client:
            yield Served(address, client, engine, loader)


def prompt_of(served: Served, messages: list[Body], **fields: Any) -> str:
    """The prompt as the model saw it."""
    served.chat(messages=messages, **fields)
    return last_text(served)


def last_text(served: Served) -> str:
    """The last prompt as the model saw it, with its answer, read back from the KV cache's keys."""
    # an answer is out before its state is put away; commands are taken after that
    is_settled = threading.Event()
    served.engine._worker._commands.put(is_settled.set)
    assert is_settled.wait(HANG_S)
    runner = served.engine._worker._slot.runner
    assert runner is not None
    entry = list(runner.prefix_cache._entries.values())[-1]
    text: str = runner.loaded.tokenizer.decode(entry.keys.tolist())
    return text


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
