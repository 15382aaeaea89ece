"""docs/api.md says what the API does with every field there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from mlx_server.wire_base import Penalty, Whole
from scripts import api_docs
from tests.asgi_client import call, make_app
from tests.fake_engine import answering

DOCUMENT = Path(__file__).parent / "openapi" / "requests.json"
PUBLISHED = json.loads(DOCUMENT.read_text())["components"]["schemas"]
CHAT = "/v1/chat/completions"
SMALLEST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
}
SCHEMAS = {
    CHAT: "CreateChatCompletionRequest",
    "/v1/completions": "CreateCompletionRequest",
    "/v1/responses": "CreateResponse",
}


def endpoint(path: str) -> api_docs.Endpoint:
    return next(found for found in api_docs.ENDPOINTS if found.path == f"POST {path}")


def table_of(path: str) -> dict[str, str]:
    """What this server does with each field of the endpoint."""
    found = endpoint(path)
    return {row[0]: row[-1] for row in api_docs.rows(found.model, found.neutral, found.inert)}


def test_the_file_is_what_the_wire_types_say() -> None:
    again = "run `python -m scripts.api_docs`"
    assert api_docs.FILE.read_text() == api_docs.api_docs(), again


@pytest.mark.parametrize("path", SCHEMAS)
def test_every_field_that_openai_has_published_is_in_the_table(path: str) -> None:
    published = set(PUBLISHED[SCHEMAS[path]]["properties"])
    assert "user" in published
    assert published - table_of(path).keys() == set()


@pytest.mark.parametrize("path", SCHEMAS)
def test_what_the_table_calls_refused_is_refused_by_name(path: str) -> None:
    for name, does in table_of(path).items():
        if not does.startswith(("only", api_docs.REFUSED)):
            continue
        engine = answering("ok")
        answer = call(make_app(engine), path, {**SMALLEST[path], name: {"another": "value"}})
        assert answer.status == 400, name
        assert answer.error["param"] == name
        assert not engine.requests


@pytest.mark.parametrize("path", SCHEMAS)
def test_what_the_table_lets_stand_is_accepted(path: str) -> None:
    app = make_app(answering("ok"))
    neutral = endpoint(path).neutral
    fields = [(name, value) for name, values in neutral.items() for value in values]
    inert = [name for name, does in table_of(path).items() if does == api_docs.INERT]
    assert inert
    fields += [(name, {"any": ["thing"]}) for name in inert]
    for name, value in fields:
        assert call(app, path, {**SMALLEST[path], name: value}).status == 200, name


class Inner(BaseModel):
    """What is
    inside."""

    a: int = 5


class Outer(BaseModel):
    inner: Inner = Inner()
    many: Annotated[list[Inner | str], Field(max_length=3)] | None = None
    kind: Literal["x", "y"]
    share: Penalty = 0.0
    count: Annotated[Whole, Field(gt=2)] | None = None
    is_on: bool = False
    other: Any = None


def test_a_table_says_what_fields_take() -> None:
    found = list(api_docs.rows(Outer, {"kind": ("x",), "old": ()}, frozenset({"hint"})))
    assert found == [
        ("inner", "`Inner`", "", "honoured"),
        ("many", "list of `Inner` or text, at most 3", "", "honoured"),
        ("kind", "`x`, `y`", "required", 'only `"x"`'),
        ("share", "number from -2 to 2", "`0.0`", "honoured"),
        ("count", "whole number above 2", "", "honoured"),
        ("is_on", "`true`, `false`", "`false`", "honoured"),
        ("other", "anything", "", "honoured"),
        ("old", "", "", "refused"),
        ("hint", "anything", "", "accepted, changes nothing"),
    ]


def test_objects_inside_are_found_with_what_they_say_of_themselves() -> None:
    assert list(dict.fromkeys(api_docs.nested_models(Outer))) == [Inner]
    assert api_docs.paragraph(Inner) == "What is inside."
