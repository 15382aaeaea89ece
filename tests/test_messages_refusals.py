"""What a messages request may not hold is refused by name, before the engine hears of it."""

from __future__ import annotations

import pytest

from tests.asgi_client import call, make_app
from tests.fake_engine import answering
from tests.messages_requests import (
    CALLED,
    IMAGE,
    PATH,
    PNG,
    RESULT,
    TOOL,
    USER,
    Body,
    assistant,
    refused,
    text,
    user,
)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"url": "https://a.b"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "compact"}]}}, "context_management"),
        ({"compaction": {"type": "summarize"}}, "compaction"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"speed": "fast"}, "speed"),
        ({"fallbacks": [{"model": "x"}]}, "fallbacks"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
        ({"tools": [TOOL, {**TOOL, "defer_loading": True}]}, "tools.1.defer_loading"),
        ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools.0.input_examples"),
        (
            {"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]},
            "tools.0.allowed_callers",
        ),
        (
            {"messages": [user({"type": "document", "source": {"type": "text"}})]},
            "messages.0.content.0.document",
        ),
        (
            {"messages": [USER, assistant({"type": "server_tool_use", "id": 1}), USER]},
            "messages.1.content.0.server_tool_use",
        ),
        (
            {"messages": [user({**RESULT, "content": [{"type": "search_result", "source": "x"}]})]},
            "messages.0.content.0.content.0.search_result",
        ),
        (
            {"messages": [user({"type": "image", "source": {"type": "file", "file_id": "f"}})]},
            "messages.0.content.0.source.type",
        ),
        (
            {"messages": [user({**IMAGE, "transformations": {"oversized_image": "error"}})]},
            "messages.0.content.0.transformations.oversized_image",
        ),
    ],
)
def test_what_is_published_and_not_honoured_is_refused_by_name(fields: Body, param: str) -> None:
    assert f"`{param}`" in refused(**fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages.0.content"),
        ({"messages": [user({"type": "text"})]}, "messages.0.content.0.text"),
        ({"messages": [user({"type": "nonsense"})]}, "messages.0.content.0.type"),
        ({"messages": [user({"type": "image"})]}, "messages.0.content.0.source"),
        (
            {"messages": [user({"type": "image", "source": {"type": "url"}})]},
            "messages.0.content.0.source.url",
        ),
        (
            {"messages": [user({"type": "image", "source": {**PNG, "data": None}})]},
            "messages.0.content.0.source.data",
        ),
        (
            {"messages": [user({"type": "image", "source": {**PNG, "media_type": "a/b"}})]},
            "messages.0.content.0.source.media_type",
        ),
        ({"messages": [user({"type": "tool_result"})]}, "messages.0.content.0.tool_use_id"),
        (
            {"messages": [USER, assistant({**CALLED, "name": None}), user(RESULT)]},
            "messages.1.content.0.name",
        ),
        (
            {"messages": [USER, assistant({**CALLED, "id": None}), user(RESULT)]},
            "messages.1.content.0.id",
        ),
        ({"messages": [USER, assistant(IMAGE), USER]}, "messages.1.content.0"),
        ({"messages": [user(CALLED)]}, "messages.0.content.0"),
        ({"system": [IMAGE]}, "system.0"),
        ({"system": 1}, "system"),
        ({"temperature": 1.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "x"}}, "thinking.type"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        (
            {"messages": [user(text("x", cache_control={"type": "for ever"}))]},
            "messages.0.content.0.cache_control.type",
        ),
    ],
)
def test_b013_b020_what_is_wrong_is_named(fields: Body, param: str) -> None:
    assert f"`{param}`" in refused(**fields)


def test_a_missing_limit_is_not_excused() -> None:
    assert "Leave it out" not in refused(max_tokens=None)


def test_b003_b004_bodies_are_read_as_for_chats() -> None:
    app = make_app(answering("ok"))
    half = b'{"model":"fake","max_tokens":9,"messages":[{"role":"user","content":"a\\ud800b"}]}'
    assert call(app, PATH, half, headers={}).status == 200
    wrong = half.replace(b'"user"', b'"x\\ud800"')
    assert call(app, PATH, wrong).status == 400
