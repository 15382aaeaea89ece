from __future__ import annotations

import stat
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from mlx_server.api.responses_store import FILE_NAME, ResponseStore, StoredResponse


def stored(name: str, previous: str | None = None, text: str = "") -> StoredResponse:
    """Not all of a response: only what a store looks at."""
    response: Any = {
        "id": name,
        "previous_response_id": previous,
        "output": [{"id": f"out-{name}", "text": text}],
    }
    item = cast(Any, {"id": f"in-{name}", "type": "message"})
    return StoredResponse(response, [item])


@pytest.fixture
def store() -> ResponseStore:
    return ResponseStore(None)


def test_what_was_put_is_found_again(store: ResponseStore) -> None:
    store.put(stored("a", text="hé\u2028\ud800"))

    found = store.get("a")

    assert found is not None
    assert found.response["output"] == [{"id": "out-a", "text": "hé\u2028?"}]
    assert found.input == [{"id": "in-a", "type": "message"}]
    assert store.get("b") is None


def test_what_is_put_again_takes_the_place_of_the_first(store: ResponseStore) -> None:
    store.put(stored("a", text="x"))
    store.put(stored("a", text="y"))

    assert store.item("out-a") == {"id": "out-a", "text": "y"}


def test_items_are_found_by_their_ids_in_input_and_output(store: ResponseStore) -> None:
    store.put(stored("a"))

    assert store.item("in-a") is not None
    assert store.item("out-a") is not None
    assert store.item("a") is None


def test_an_item_that_two_responses_have_outlives_one_of_them(store: ResponseStore) -> None:
    store.put(stored("a"))
    store.put(StoredResponse(stored("b").response, stored("a").input))

    assert store.delete("a")

    assert store.item("in-a") is not None
    assert store.item("out-a") is None


def test_a_conversation_is_all_responses_in_order(store: ResponseStore) -> None:
    for one in (stored("a"), stored("b", "a"), stored("c", "b")):
        store.put(one)

    found = store.conversation("c")

    assert found is not None
    assert [one.id for one in found] == ["a", "b", "c"]


def test_a_conversation_with_a_gap_is_none(store: ResponseStore) -> None:
    store.put(stored("a"))
    store.put(stored("b", "a"))
    store.delete("a")

    assert store.conversation("b") is None
    assert store.conversation("a") is None


def test_what_was_deleted_is_gone_and_cannot_be_deleted_again(store: ResponseStore) -> None:
    store.put(stored("a"))

    assert store.delete("a")

    assert store.get("a") is None
    assert store.item("out-a") is None
    assert not store.delete("a")


def test_of_too_many_the_one_goes_that_was_not_used_for_longest() -> None:
    store = ResponseStore(None, max_responses=2)
    store.put(stored("a"))
    store.put(stored("b"))
    store.get("a")

    store.put(stored("c"))

    assert [name for name in "abc" if store.get(name)] == ["a", "c"]


def test_the_bytes_of_all_are_bounded() -> None:
    store = ResponseStore(None, max_bytes=3000)
    for name in "abc":
        store.put(stored(name, text="x" * 1000))

    assert [name for name in "abc" if store.get(name)] == ["b", "c"]

    store.put(stored("d", text="x" * 4000))

    assert [name for name in "abcd" if store.get(name)] == []


def test_a_conversation_that_goes_on_keeps_its_beginning() -> None:
    store = ResponseStore(None, max_responses=3)
    store.put(stored("a"))
    store.put(stored("b", "a"))
    store.put(stored("other"))
    store.conversation("b")

    store.put(stored("c", "b"))

    assert store.conversation("c") is not None
    assert store.get("other") is None


def test_a_file_outlives_the_store(tmp_path: Path) -> None:
    first = ResponseStore(tmp_path, max_responses=2)
    first.put(stored("a"))
    first.put(stored("b", "a"))
    first.get("a")

    second = ResponseStore(tmp_path, max_responses=2)

    found = second.conversation("b")
    assert found is not None
    assert [one.id for one in found] == ["a", "b"]
    second.get("b")
    second.put(stored("c"))
    assert second.get("a") is None


def test_nobody_else_may_read_the_file(tmp_path: Path) -> None:
    ResponseStore(tmp_path).put(stored("a"))

    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (tmp_path / FILE_NAME).exists()


def test_a_file_that_cannot_be_written_costs_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ResponseStore(tmp_path)
    store._db.execute("PRAGMA query_only = ON")

    store.put(stored("a"))

    assert "could not be stored" in caplog.text


def test_threads_may_share_a_store(store: ResponseStore) -> None:
    def work(name: str) -> None:
        for i in range(20):
            store.put(stored(f"{name}{i}"))
            assert store.get(f"{name}{i}") is not None

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(store.get(f"{name}19") for name in "abc")
