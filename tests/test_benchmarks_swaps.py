"""That the storm of swaps counts what it says, on a server whose loads can be seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.bench import Bench
from benchmarks.client import Answer
from benchmarks.report import Samples
from benchmarks.scenarios import swaps
from benchmarks.servers import OURS
from tests.scripted import Script
from tests.scripted_server import Served, chat_body, scripted_server


class ServedBench:
    """A bench whose only server is one that already runs."""

    runs = 2
    limit_s = 30.0
    writer = SimpleNamespace(text=lambda num_tokens, name: name)

    def __init__(self, served: Served) -> None:
        self._served = served

    def checkpoint(self, name: str) -> Path:
        return Path(name)

    def size(self, usual: int, quick: int) -> int:
        return quick

    @contextmanager
    def serve(self, *args: Any) -> Iterator[Any]:
        loads = self._served.loader.loads

        class Server:
            port = self._served.address[1]
            num_loads = property(lambda _: len(loads))

            def name_of(self, model: Path) -> str:
                return model.name

            def chat(self, text: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
                return {"model": "a", **chat_body(max_tokens=max_tokens, stream=True), **fields}

        yield Server()


def test_requests_for_one_model_pay_for_no_load(
    script: Script, other: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.say("x")
    other.say("y")
    num_loads = []
    storm = swaps.storm

    async def watched(bench: Bench, server: Any, models: Sequence[Path], name: str) -> list[Answer]:
        before = server.num_loads
        answers = await storm(bench, server, models, name)
        num_loads.append((len(models), server.num_loads - before))
        return answers

    monkeypatch.setattr(swaps, "storm", watched)
    monkeypatch.setattr(swaps, "NUM_CLIENTS", 1)
    samples = Samples()
    with scripted_server(tmp_path, a=script, b=other) as served:
        swaps.measure(cast(Bench, ServedBench(served)), OURS, samples, ["a", "b"])
    assert num_loads == [(1, 0), (2, 1), (1, 0), (2, 1)]
    assert samples.values[swaps.LOADS] == [1, 1]
