"""Conversations reach the model's template in the form it knows, or are refused as the client's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlx_server.config import EngineConfig
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.render import MAX_TEMPLATE_MESSAGE, RESERVED_KWARGS, render
from mlx_server.engine.sequence import ChatMessage, ChatPrompt, ImagePart, TextPart, ToolCall
from mlx_server.engine.template_habits import wants_arguments_as_text
from mlx_server.errors import InvalidRequest
from tests.engine_runs import assistant, system, user
from tests.scripted import Script, ScriptedLoader, write_scripted_checkpoint
from tests.tiny import templates

Load = Callable[[str], LoadedModel]
HELLO = ChatPrompt((user("hello"),))
CALL = ToolCall("call_1", "look", {"place": "here", "deep": {"n": [1, 2]}})


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path: Path = tmp_path_factory.mktemp("render") / "m"
    return ScriptedLoader(m=Script())("m", write_scripted_checkpoint(path), EngineConfig())


def with_template(loaded: LoadedModel, template: str | None) -> LoadedModel:
    return replace(loaded, chat_template=template)


def refusal(loaded: LoadedModel, prompt: ChatPrompt = HELLO) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        render(loaded, prompt)
    return raised.value


def test_turns_are_rendered_up_to_where_the_assistant_begins(chatml: LoadedModel) -> None:
    prompt = ChatPrompt((system("be kind"), user("hello"), assistant("hi"), user("and now?")))
    assert render(chatml, prompt) == (
        "<|im_start|>system\nbe kind<|im_end|>\n"
        "<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\nhi<|im_end|>\n"
        "<|im_start|>user\nand now?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_an_answer_that_is_begun_stands_behind_the_conversation(chatml: LoadedModel) -> None:
    prompt = ChatPrompt((user("hello"),), prefill="I say (")
    assert render(chatml, prompt).endswith("<|im_start|>assistant\nI say (")
    opening = replace(
        with_template(chatml, "{{ messages[0].content + '<think>\n' }}"), reasoning_format="think"
    )
    assert render(opening, prompt) == "hello<think>\n</think>\n\nI say ("
    assert render(opening, HELLO) == "hello<think>\n"
    harmony = replace(
        with_template(chatml, "{{ messages[0].content }}"), reasoning_format="harmony"
    )
    assert render(harmony, prompt) == "hello<|channel|>final<|message|>I say ("


def test_b028_parts_of_text_are_lines_of_one_string_for_templates_of_strings(
    chatml: LoadedModel,
) -> None:
    message = ChatMessage("user", (TextPart("one"), TextPart("two")))
    echo = with_template(chatml, "{{ messages[0].content }}")
    assert render(echo, ChatPrompt((message,))) == "one\ntwo"


def test_b026_absent_content_is_the_empty_string(chatml: LoadedModel) -> None:
    echo = with_template(chatml, "[{{ messages[0].content }}]")
    assert render(echo, ChatPrompt((ChatMessage("user"),))) == "[]"


def test_b098_images_and_texts_keep_their_order(load_tiny: Load) -> None:
    parts = (TextPart("a"), ImagePart("data:,", "p"), TextPart("b"), ImagePart("data:,", "p"))
    prompt = ChatPrompt((ChatMessage("user", parts),))
    mark = "<|vision_start|><|image_pad|><|vision_end|>"
    assert f"a{mark}b{mark}<|im_end|>" in render(load_tiny("qwen3_vl"), prompt)
    text = render(load_tiny("gemma3"), prompt)
    assert "a<start_of_image>b<start_of_image>" in text.replace("\n", "")


def test_models_that_see_get_parts_where_their_template_wants_only_these(
    load_tiny: Load,
) -> None:
    loaded = with_template(load_tiny("qwen3_vl"), "{{ messages[0].content[0].text }}")
    assert render(loaded, HELLO) == "hello"


def test_tools_calls_and_results_reach_a_template_that_knows_them(chatml: LoadedModel) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    messages = (
        user("look around"),
        ChatMessage("assistant", tool_calls=(CALL,)),
        ChatMessage("tool", (TextPart("nothing"),), tool_call_id="call_1"),
    )
    text = render(chatml, ChatPrompt(messages, (tool,)))
    assert '"name": "look"' in text.split("<|im_end|>")[0]
    assert '{"name": "look", "arguments": {"place": "here", "deep": {"n": [1, 2]}}}' in text
    assert "<tool_response>\nnothing\n</tool_response>" in text


def test_ids_names_and_thoughts_reach_the_template(chatml: LoadedModel) -> None:
    messages = (
        ChatMessage("user", (TextPart("x"),), name="ann"),
        ChatMessage("assistant", (TextPart("y"),), reasoning_content="hmm", tool_calls=(CALL,)),
        ChatMessage("tool", (TextPart("z"),), tool_call_id="call_1"),
    )
    echo = with_template(
        chatml,
        "{{ messages[0].name }} {{ messages[1].reasoning_content }} "
        "{{ messages[1].tool_calls[0].id }} {{ messages[1].tool_calls[0].type }} "
        "{{ messages[2].tool_call_id }} {{ messages[2].name is defined }} {{ tools is none }}",
    )
    assert render(echo, ChatPrompt(messages)) == "ann hmm call_1 function call_1 False True"


def test_b090_switches_of_the_template_reach_it(chatml: LoadedModel) -> None:
    echo = with_template(chatml, "{{ enable_thinking }} {{ custom.deep }}")
    kwargs = {"enable_thinking": False, "custom": {"deep": 3}}
    assert render(echo, replace(HELLO, template_kwargs=kwargs)) == "False 3"


@pytest.mark.parametrize("name", sorted(RESERVED_KWARGS))
def test_arguments_of_the_rendering_itself_may_not_be_set(chatml: LoadedModel, name: str) -> None:
    error = refusal(chatml, replace(HELLO, template_kwargs={name: True, "fine": 1}))
    assert error.param == "chat_template_kwargs"
    assert name in error.message
    assert "fine" not in error.message


@pytest.mark.parametrize("name", ["self", "tokenizer", "raise_exception", "", "strftime_now"])
def test_odd_switches_end_in_a_text_or_a_refusal(chatml: LoadedModel, name: str) -> None:
    try:
        assert render(chatml, replace(HELLO, template_kwargs={name: {}}))
    except InvalidRequest as error:
        assert error.param in ("messages", "chat_template_kwargs")


def test_a_model_without_a_template_refuses_chats(chatml: LoadedModel) -> None:
    error = refusal(with_template(chatml, None))
    assert "/v1/completions" in error.message


def test_b024_system_text_opens_the_first_user_turn_where_the_role_is_unknown(
    chatml: LoadedModel,
) -> None:
    loaded = with_template(chatml, templates.NO_SYSTEM)
    text = render(loaded, ChatPrompt((system("be kind"), user("hello"), assistant("hi"))))
    assert "<|im_start|>user\nbe kind\nhello<|im_end|>" in text
    assert "<|im_start|>system" not in text
    alone = render(loaded, ChatPrompt((system("be kind"),)))
    assert alone.startswith("<|im_start|>user\nbe kind<|im_end|>")


def test_what_a_template_says_of_a_refusal_is_told_in_short(chatml: LoadedModel) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    error = refusal(with_template(chatml, template))
    assert "roles must alternate" in error.message
    assert error.param == "messages"
    template = "{{ raise_exception('x' * 100000) }}"
    assert len(refusal(with_template(chatml, template)).message) < MAX_TEMPLATE_MESSAGE + 100


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 // 0 }}",
        "{{ messages[7].content.x.y }}",
        "{{ nothing.at.all }}",
        "{{ messages[0].content + 1 }}",
        "{% for i in range(999999999) %}x{% endfor %}",
        "{{ messages | tojson | fromjson }}",
        "{{ ''.format.__globals__.x }}",
        "{% if %}",
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ 1 // 0 }}",
        "{{ [1][5] + [] }}",
        "{{ 'x'.index('y') }}",
        "{{ {}.pop('y') }}",
        "{{ [].pop() }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{{ 10 ** 400 * 1.0 }}",
        "{{ messages[0].content.encode('ascii', 'none') }}{{ '\u00e9'.encode('ascii') }}",
    ],
)
@pytest.mark.parametrize("lead", [(), (system("be kind"),)], ids=["plain", "system"])
def test_whatever_goes_wrong_in_a_template_is_a_refusal(
    chatml: LoadedModel, template: str, lead: tuple[Any, ...]
) -> None:
    error = refusal(with_template(chatml, template), ChatPrompt((*lead, user("hello"))))
    assert error.param == "messages"
    assert "hello" not in error.message


def test_names_that_clients_give_are_not_told_back(chatml: LoadedModel) -> None:
    template = "{% for p in tools[0].function.parameters.required %}{{ {}[p].x }}{% endfor %}"
    function = {"name": "f", "parameters": {"type": "object", "required": ["zebra"]}}
    prompt = replace(HELLO, tools=({"type": "function", "function": function},))
    assert "zebra" not in refusal(with_template(chatml, template), prompt).message


# As Mistral's and DeepSeek's templates write calls: one prints the arguments, one adds them up.
PRINTS = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments }}{% endfor %}{% endfor %}"
    "{{ tools }}"
)
ADDS = PRINTS.replace("{{ c.function.arguments }}", "{{ '```json\\n' + c.function.arguments }}")
DUMPS = PRINTS.replace("arguments }}", "arguments | tojson }}")
ITEMS = PRINTS.replace(
    "{{ c.function.arguments }}",
    "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}",
)
EITHER = PRINTS.replace(
    "{{ c.function.arguments }}",
    "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}",
)
STRICT = "{% if messages | length > 1 %}{{ raise_exception('no') }}{% endif %}" + PRINTS


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (PRINTS, '{"place": "hére", "deep": {"n": [1, 2]}}'),
        (ADDS, '```json\n{"place": "hére", "deep": {"n": [1, 2]}}'),
        (DUMPS, '{"place": "hére", "deep": {"n": [1, 2]}}'),
        (ITEMS, "place=hére;deep={'n': [1, 2]};"),
        (EITHER, '{"place": "hére", "deep": {"n": [1, 2]}}'),
    ],
    ids=["prints", "adds", "dumps", "items", "either"],
)
def test_b033_arguments_of_the_history_come_in_the_form_the_template_wants(
    chatml: LoadedModel, template: str, written: str
) -> None:
    call = replace(CALL, arguments={"place": "h\u00e9re", "deep": {"n": [1, 2]}})
    messages = (user("x"), ChatMessage("assistant", tool_calls=(call,)))
    text = render(with_template(chatml, template), ChatPrompt(messages))
    assert f"look[ARGS]{written}" in text


def test_templates_that_take_no_call_get_arguments_as_objects() -> None:
    assert wants_arguments_as_text(PRINTS)
    assert not wants_arguments_as_text(STRICT)
    assert not wants_arguments_as_text(templates.CHATML)
    assert not wants_arguments_as_text("{% if %}")


@pytest.mark.parametrize(("value", "written"), [(True, "True"), (False, "False")])
def test_b090_a_template_that_calls_the_switch_otherwise_gets_it_too(
    chatml: LoadedModel, value: bool, written: str
) -> None:
    echo = with_template(chatml, "{{ thinking }}")
    asked = replace(HELLO, template_kwargs={"enable_thinking": value})
    assert render(echo, asked) == written
    asked = replace(HELLO, template_kwargs={"enable_thinking": value, "thinking": 3})
    assert render(echo, asked) == "3"


@pytest.mark.parametrize(
    ("effort", "written"),
    [("none", "low"), ("minimal", "low"), ("medium", "medium"), ("xhigh", "high"), (7, "7")],
)
def test_harmony_gets_efforts_that_it_knows(chatml: LoadedModel, effort: Any, written: str) -> None:
    echo = replace(with_template(chatml, "{{ reasoning_effort }}"), reasoning_format="harmony")
    assert render(echo, replace(HELLO, template_kwargs={"reasoning_effort": effort})) == written
    other = replace(echo, reasoning_format="think")
    asked = replace(HELLO, template_kwargs={"reasoning_effort": "minimal"})
    assert render(other, asked) == "minimal"


def test_harmony_gets_no_thoughts_beside_content_and_calls(chatml: LoadedModel) -> None:
    template = "{% for m in messages %}[{{ m.thinking }}]{% endfor %}{% if tools %}{% endif %}"
    echo = with_template(chatml, template)
    alone = ChatMessage("assistant", reasoning_content="hmm", tool_calls=(CALL,))
    both = replace(alone, content=(TextPart("x"),))
    said = replace(both, tool_calls=())
    prompt = ChatPrompt((alone, both, said))
    assert render(replace(echo, reasoning_format="harmony"), prompt) == "[hmm][][hmm]"
    assert render(echo, prompt) == "[hmm][hmm][hmm]"
