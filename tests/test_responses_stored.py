"""What can be done with a response later, and what goes on from it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mlx_server.engine.sequence import ChatPrompt, Delta, FinishReason, TextPart
from mlx_server.errors import GenerationFailed
from tests.asgi_client import Answer, Call, call, make_app, run
from tests.fake_engine import FakeEngine, answering, deltas, started
from tests.openapi_schema import check
from tests.responses_requests import CALL, IMAGE, PATH, RESULT, TOOL, USER_HI, events_of


def create(app: Any, **fields: Any) -> dict[str, Any]:
    answer = call(app, PATH, {"input": "hi", **fields})
    assert answer.status == 200, answer.body
    response: dict[str, Any] = answer.json
    return response


def conversation(engine: FakeEngine) -> list[tuple[str, str]]:
    """Roles and texts of the last prompt."""
    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [
        (m.role, "".join(part.text for part in m.content if isinstance(part, TextPart)))
        for m in prompt.messages
    ]


def delete(app: Any, name: str) -> Answer:
    return call(app, f"{PATH}/{name}", method="DELETE")


def test_a_response_is_found_by_its_id() -> None:
    app = make_app(answering("ok"))
    response = create(app)

    answer = call(app, f"{PATH}/{response['id']}")

    assert (answer.status, answer.json) == (200, response)
    assert call(app, f"/responses/{response['id']}").json == response


@pytest.mark.parametrize("stream", [True, False])
def test_what_shall_not_be_stored_is_not(stream: bool) -> None:
    app = make_app(answering("ok"))
    answer = call(app, PATH, {"input": "hi", "store": False, "stream": stream})
    response = events_of(answer.body)[0]["response"] if stream else answer.json

    missing = call(app, f"{PATH}/{response['id']}")

    assert missing.status == 404
    assert missing.error["type"] == "invalid_request_error"


def test_a_streamed_response_is_stored_when_its_end_is_told() -> None:
    async def work() -> tuple[dict[str, Any], Answer]:
        app = make_app(answering("ok"))
        request = Call(app, PATH, {"input": "hi", "stream": True})
        await request.head()
        read = b""
        while b"response.completed" not in read:
            read += await request.piece()
        last = events_of(read)[-1]["response"]
        return last, await Call(app, f"{PATH}/{last['id']}").answer()

    last, answer = run(work())

    assert answer.json == last


def test_a_deleted_response_is_gone() -> None:
    app = make_app(answering("ok"))
    name = create(app)["id"]

    assert delete(app, name).json == {"id": name, "object": "response", "deleted": True}

    assert call(app, f"{PATH}/{name}").status == 404
    assert delete(app, name).status == 404


@pytest.mark.parametrize("query", ["stream=true", "starting_after=3"])
def test_a_stored_response_is_not_streamed_again(query: str) -> None:
    app = make_app(answering("ok"))

    answer = call(app, f"{PATH}/{create(app)['id']}?{query}")

    assert (answer.status, answer.error["param"]) == (400, query.split("=")[0])
    assert answer.error["code"] == "unsupported_parameter"


def test_the_items_of_a_request_are_listed() -> None:
    app = make_app(answering("ok"))
    image = {"type": "input_image", "image_url": IMAGE}
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": []}
    said = {"role": "assistant", "content": "I look."}
    items = [{"role": "user", "content": [image]}, thought, said, CALL, RESULT]
    name = create(app, input=items, tools=[TOOL])["id"]

    listed = call(app, f"{PATH}/{name}/input_items?order=asc").json

    check("ResponseItemList", listed)
    assert [item["type"] for item in listed["data"]] == [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
    ]
    assert listed["data"][0]["content"] == [{**image, "detail": "auto"}]
    assert listed["data"][1]["id"] == "rs_1"
    assert listed["data"][4]["output"] == "done"
    assert not listed["has_more"]
    newest_first = call(app, f"{PATH}/{name}/input_items").json
    assert newest_first["data"] == listed["data"][::-1]


def test_items_are_listed_page_by_page() -> None:
    app = make_app(answering("ok"))
    name = create(app, input=[USER_HI] * 3)["id"]
    path = f"{PATH}/{name}/input_items?order=asc&limit=2"

    first = call(app, path).json
    second = call(app, f"{path}&after={first['last_id']}").json

    assert (len(first["data"]), first["has_more"]) == (2, True)
    assert (len(second["data"]), second["has_more"]) == (1, False)
    assert first["first_id"] == first["data"][0]["id"]
    assert len({item["id"] for item in first["data"] + second["data"]}) == 3
    last = call(app, f"{path}&after={second['last_id']}").json
    assert (last["data"], last["first_id"], last["last_id"]) == ([], None, None)


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=x", "after")],
)
def test_b013_a_wrong_page_is_a_400_that_names_the_field(query: str, param: str) -> None:
    app = make_app(answering("ok"))

    answer = call(app, f"{PATH}/{create(app)['id']}/input_items?{query}")

    assert (answer.status, answer.error["param"]) == (400, param)


def test_nothing_is_known_of_a_response_that_never_was() -> None:
    app = make_app(answering("ok"))

    assert call(app, f"{PATH}/resp_x").status == 404
    assert call(app, f"{PATH}/resp_x/input_items").status == 404
    assert call(app, f"{PATH}/resp_x/cancel", method="POST").status == 404


def test_a_response_goes_on_from_another_but_for_its_instructions() -> None:
    engine = answering("ok")
    app = make_app(engine)
    first = create(app, input="one", instructions="A")
    second = create(app, input="two", previous_response_id=first["id"], instructions="B")

    create(app, input="three", previous_response_id=second["id"])

    assert conversation(engine) == [
        ("user", "one"),
        ("assistant", "ok"),
        ("user", "two"),
        ("assistant", "ok"),
        ("user", "three"),
    ]
    assert second["previous_response_id"] == first["id"]
    listed = call(app, f"{PATH}/{second['id']}/input_items").json
    assert [item["content"][0]["text"] for item in listed["data"]] == ["two"]


def test_the_result_of_a_call_goes_on_from_the_response_that_made_it() -> None:
    text = 'why</think><tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'
    engine = answering(text, tool_format="json_tools", reasoning_format="think", is_reasoning=True)
    app = make_app(engine)
    first = create(app, tools=[TOOL])
    result = {**RESULT, "call_id": first["output"][-1]["call_id"]}

    create(app, input=[result], previous_response_id=first["id"], tools=[TOOL])

    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    _, turn, tool_turn = prompt.messages
    assert turn.reasoning_content == "why"
    assert (turn.tool_calls[0].name, turn.tool_calls[0].arguments) == ("f", {"a": 1})
    assert tool_turn.tool_call_id == turn.tool_calls[0].id


def test_an_unknown_previous_response_is_refused_by_name() -> None:
    engine = answering("ok")

    answer = call(make_app(engine), PATH, {"input": "hi", "previous_response_id": "resp_x"})

    assert answer.status == 400
    assert answer.error["code"] == "previous_response_not_found"
    assert answer.error["param"] == "previous_response_id"
    assert not engine.requests


def test_an_incomplete_response_can_be_gone_on_from() -> None:
    engine = FakeEngine([started(), *deltas("Hel", finish=FinishReason.LENGTH)])
    app = make_app(engine)

    create(app, input="go on", previous_response_id=create(app)["id"])

    assert conversation(engine)[1] == ("assistant", "Hel")


def test_an_item_may_be_named_instead_of_sent() -> None:
    engine = answering("ok")
    app = make_app(engine)
    output = create(app, input="one")["output"]

    for reference in ({"type": "item_reference", "id": output[0]["id"]}, {"id": output[0]["id"]}):
        create(app, input=[{"role": "user", "content": "one"}, reference, USER_HI])

        assert conversation(engine) == [("user", "one"), ("assistant", "ok"), ("user", "hi")]


def test_an_unknown_item_is_refused_by_name() -> None:
    body = {"input": [{"type": "item_reference", "id": "msg_x"}]}

    answer = call(make_app(answering("ok")), PATH, body)

    assert (answer.status, answer.error["param"]) == (400, "input.0.id")


def test_a_finished_response_cannot_be_cancelled() -> None:
    app = make_app(answering("ok"))
    name = create(app)["id"]

    assert call(app, f"{PATH}/{name}/cancel", method="POST").status == 400
    assert call(app, f"{PATH}/{name}").json["status"] == "completed"


async def begin(app: Any) -> tuple[Call, bytes, str]:
    """A stream that has said its first word, what it said, and its id."""
    request = Call(app, PATH, {"input": "hi", "stream": True})
    await request.head()
    read = b""
    while b"output_text.delta" not in read:
        read += await request.piece()
    name: str = events_of(read)[0]["response"]["id"]
    return request, read, name


async def rest(request: Call) -> bytes:
    read = b""
    while piece := await request.piece():
        read += piece
    return read


def endless(*after: Any) -> FakeEngine:
    return FakeEngine([started(), Delta(0, "a", 1), asyncio.Event(), *after])


def test_a_running_response_can_be_read() -> None:
    async def work() -> tuple[Answer, Answer]:
        app = make_app(endless())
        request, _, name = await begin(app)
        found = await Call(app, f"{PATH}/{name}").answer()
        items = await Call(app, f"{PATH}/{name}/input_items").answer()
        await request.hang_up()
        return found, items

    found, items = run(work())

    check("Response", found.json)
    assert found.json["status"] == "in_progress"
    assert found.json["output"][0]["content"][0]["text"] == "a"
    assert items.json["data"][0]["content"][0]["text"] == "hi"


def test_a_running_response_can_be_cancelled() -> None:
    async def work() -> tuple[FakeEngine, Answer, bytes, Answer]:
        engine = endless()
        app = make_app(engine)
        request, read, name = await begin(app)
        cancelled = await Call(app, f"{PATH}/{name}/cancel", method="POST").answer()
        read += await rest(request)
        return engine, cancelled, read, await Call(app, f"{PATH}/{name}").answer()

    engine, cancelled, read, found = run(work())

    check("Response", cancelled.json)
    assert cancelled.json["status"] == "cancelled"
    assert engine.num_closed == 1
    last = events_of(read)[-1]
    check("ResponseStreamEvent", last)
    assert (last["type"], last["response"]["status"]) == ("response.failed", "cancelled")
    assert found.json == last["response"]


def test_a_cancelled_response_is_not_gone_on_from() -> None:
    async def work() -> Answer:
        app = make_app(endless())
        request, _, name = await begin(app)
        await Call(app, f"{PATH}/{name}/cancel", method="POST").answer()
        await rest(request)
        return await Call(app, PATH, {"input": "hi", "previous_response_id": name}).answer()

    answer = run(work())

    assert (answer.status, answer.error["param"]) == (400, "previous_response_id")


def test_a_response_that_failed_in_its_stream_is_kept_as_failed() -> None:
    async def work() -> Answer:
        engine = endless(GenerationFailed("It broke."))
        app = make_app(engine)
        request, _, name = await begin(app)
        engine.script[2].set()
        await rest(request)
        return await Call(app, f"{PATH}/{name}").answer()

    found = run(work()).json

    assert (found["status"], found["error"]["message"]) == ("failed", "It broke.")


def test_b066_a_client_that_leaves_ends_its_response_and_nothing_is_kept_of_it() -> None:
    async def work() -> tuple[FakeEngine, Answer]:
        engine = endless()
        app = make_app(engine)
        request, _, name = await begin(app)
        await request.hang_up()
        return engine, await Call(app, f"{PATH}/{name}").answer()

    engine, found = run(work())

    assert engine.num_closed == 1
    assert found.status == 404


def test_responses_outlive_the_server_in_its_state_folder(tmp_path: Path) -> None:
    first = create(make_app(answering("ok"), state_dir=tmp_path), input="one")
    engine = answering("ok")
    app = make_app(engine, state_dir=tmp_path)

    create(app, input="two", previous_response_id=first["id"])

    assert call(app, f"{PATH}/{first['id']}").json == first
    assert conversation(engine) == [("user", "one"), ("assistant", "ok"), ("user", "two")]


def test_without_a_state_folder_nothing_is_left_behind() -> None:
    name = create(make_app(answering("ok")))["id"]

    assert call(make_app(answering("ok")), f"{PATH}/{name}").status == 404
