from __future__ import annotations

import re
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from mlx_server.cli import parse_args
from mlx_server.config import GIB, MIB, EngineConfig, KVQuantisation, MediaLimits, ServerConfig
from mlx_server.options import build_parser

DEFAULTS = ServerConfig()
ENGINE = EngineConfig()
TMP = Path(tempfile.gettempdir())
TEMPLATE = Path(__file__).parent / "templates" / "echo.jinja"
BROKEN = TEMPLATE.with_name("broken.jinja")


def engine(**values: Any) -> ServerConfig:
    return replace(DEFAULTS, engine=replace(ENGINE, **values))


def media(**values: Any) -> ServerConfig:
    return engine(media=replace(MediaLimits(), **values))


EFFECTS = {
    "--model org/name": replace(DEFAULTS, models=("org/name",)),
    "--alias fast=org/name": replace(DEFAULTS, aliases={"fast": "org/name"}),
    "--cpu-dtype bfloat16": engine(cpu_dtype="bfloat16"),
    "--tool-call-parser hermes": engine(tool_call_parser="json_tools"),
    "--reasoning-parser none": engine(reasoning_parser="none"),
    f"--chat-template-file {TEMPLATE}": engine(chat_template="{{ messages }}"),
    "--trust-remote-code": engine(trust_remote_code=True),
    "--cache-dir /somewhere": replace(DEFAULTS, cache_dir=Path("/somewhere")),
    "--host 0.0.0.0": replace(DEFAULTS, host="0.0.0.0"),
    "--port 8080": replace(DEFAULTS, port=8080),
    "--api-key secret": replace(DEFAULTS, api_key="secret"),
    "--cors-origin http://a:1": replace(DEFAULTS, cors_origins=("http://a:1",)),
    "--heartbeat-s 2.5": replace(DEFAULTS, heartbeat_s=2.5),
    "--always-include-usage": replace(DEFAULTS, always_include_usage=True),
    "--max-body-mb 0.5": replace(DEFAULTS, max_body_bytes=MIB // 2),
    "--context-length 4096": engine(context_length=4096),
    "--default-max-tokens 100": engine(default_max_tokens=100),
    "--kv-bits 4": engine(kv_quantisation=KVQuantisation(4)),
    "--kv-group-size 32 --kv-bits 8": engine(kv_quantisation=KVQuantisation(8, group_size=32)),
    "--quantized-kv-start 9 --kv-bits 8": engine(kv_quantisation=KVQuantisation(8, start=9)),
    "--max-num-seqs 7": engine(max_num_seqs=7),
    "--max-decode-stall-ms 100": engine(max_decode_stall_s=0.1),
    "--swap-patience-s 0.5": engine(swap_patience_s=0.5),
    "--max-waiting 3": engine(max_waiting=3),
    "--request-timeout-s 60": engine(request_timeout_s=60.0),
    "--memory-limit-gb 1.5": engine(memory_limit_bytes=1536 * MIB),
    "--prefix-cache-gb 0": engine(prefix_cache_bytes=0),
    f"--prefix-cache-dir {TMP}": engine(prefix_cache_dir=TMP),
    f"--prefix-cache-disk-gb 0.5 --prefix-cache-dir {TMP}": engine(
        prefix_cache_dir=TMP, prefix_cache_disk_bytes=GIB // 2
    ),
    "--prefill-step-size 64": engine(prefill_step_size=64),
    "--allow-private-image-urls": media(allow_private_urls=True),
    "--max-image-mb 1": media(max_image_bytes=MIB),
    "--drain-s 0": replace(DEFAULTS, drain_s=0.0),
    "--log-level debug": replace(DEFAULTS, log_level="debug"),
}


def test_no_options_give_the_defaults() -> None:
    assert parse_args([], {}) == DEFAULTS


@pytest.mark.parametrize("arguments", EFFECTS)
def test_an_option_sets_its_field_and_no_other(arguments: str) -> None:
    assert parse_args(arguments.split(), {}) == EFFECTS[arguments]


def test_every_option_of_the_help_is_known_to_these_tests() -> None:
    offered = set(re.findall(r"^  (--[a-z-]+)", build_parser().format_help(), re.MULTILINE))
    assert offered == {arguments.split()[0] for arguments in EFFECTS}


def test_every_field_is_read_somewhere() -> None:
    package = Path(__file__).parent.parent / "mlx_server"
    readers = [
        p for p in package.rglob("*.py") if p.name not in ("cli.py", "options.py", "config.py")
    ]
    source = "\n".join(path.read_text() for path in readers)
    names = [f.name for kind in (ServerConfig, EngineConfig, MediaLimits) for f in fields(kind)]
    assert [name for name in names if not re.search(rf"\.{name}\b", source)] == []


@pytest.mark.parametrize(
    "names",
    ["qwen3 qwen3_coder glm47_flash harmony hermes kimi_k2 solar_open step_35 mistral cohere"],
)
def test_names_of_other_servers_are_known(names: str) -> None:
    for name in names.split():
        parse_args(["--tool-call-parser", name, "--reasoning-parser", name], {})


def test_options_that_may_be_repeated_keep_their_order() -> None:
    arguments = "--model b --model a --alias x=b --alias y=a --cors-origin http://b --cors-origin *"
    config = parse_args(arguments.split(), {})
    assert config.models == ("b", "a")
    assert config.aliases == {"x": "b", "y": "a"}
    assert config.cors_origins == ("http://b", "*")


def test_no_origin_may_be_allowed() -> None:
    assert parse_args(["--cors-origin", "none"], {}).cors_origins == ()


def test_an_alias_may_name_a_path_with_an_equals_sign() -> None:
    assert parse_args(["--alias", "a=/models/x=y"], {}).aliases == {"a": "/models/x=y"}


def test_the_key_comes_from_the_environment_unless_an_option_gives_it() -> None:
    environment = {"MLX_SERVER_API_KEY": "from-there"}
    assert parse_args([], environment).api_key == "from-there"
    assert parse_args(["--api-key", "from-here"], environment).api_key == "from-here"


def test_an_empty_key_in_the_environment_is_none() -> None:
    assert parse_args([], {"MLX_SERVER_API_KEY": ""}).api_key is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--port", "99999"], "argument --port: must be a whole number from 0 to 65535"),
        (["--port", "http"], "argument --port: must be a whole number from 0 to 65535"),
        (["--context-length", "0"], "must be a whole number from 1 to 1000000000, not '0'"),
        (["--kv-bits", "3"], "argument --kv-bits: invalid choice"),
        (["--kv-group-size", "64"], "argument --kv-group-size: needs --kv-bits as well"),
        (["--quantized-kv-start", "9"], "argument --quantized-kv-start: needs --kv-bits as well"),
        (["--prefix-cache-disk-gb", "9"], "--prefix-cache-disk-gb: needs --prefix-cache-dir"),
        (
            ["--max-num-seqs", "257"],
            "--max-num-seqs: must not be above --max-waiting, which is 256",
        ),
        (["--max-num-seqs", "3", "--max-waiting", "2"], "--max-waiting, which is 2 and counts"),
        (["--max-waiting", "1.5"], "must be a whole number from 1 to 1000000000, not '1.5'"),
        (["--max-body-mb", "0"], "must be a number above 0, not '0'"),
        (["--heartbeat-s", "nan"], "must be a number above 0, not 'nan'"),
        (["--request-timeout-s", "inf"], "must be a number above 0, not 'inf'"),
        (["--drain-s", "-1"], "must be a number of 0 or more, not '-1'"),
        (["--prefix-cache-gb", "much"], "must be a number of 0 or more, not 'much'"),
        (["--memory-limit-gb", "1e300"], "--memory-limit-gb: must be at most 1000000000"),
        (["--prefix-cache-gb", "1e300"], "--prefix-cache-gb: must be at most 1000000000"),
        (["--drain-s", "1e10"], "argument --drain-s: must be at most 1000000000, not '1e10'"),
        (["--max-num-seqs", "1" + 20 * "0"], "must be a whole number from 1 to 1000000000"),
        (["--alias", "fast"], "must have the form NAME=MODEL, not 'fast'"),
        (["--alias", "=x"], "must have the form NAME=MODEL, not '=x'"),
        (["--alias", "a=x", "--alias", "a=y"], "argument --alias: gives the same NAME twice"),
        (["--model", ""], "argument --model: must not be empty"),
        (["--api-key", ""], "argument --api-key: must be printable ASCII"),
        (["--api-key", "a b"], "argument --api-key: must be printable ASCII"),
        (["--cors-origin", "localhost"], "have the form http://host:port, not 'localhost'"),
        (["--cors-origin", "http://a/path"], "have the form http://host:port"),
        (["--cors-origin", "http://[a"], "have the form http://host:port"),
        (["--tool-call-parser", "yaml"], "must be one of auto, none, atem, cohere, "),
        (["--tool-call-parser", "yaml"], "xlam, not 'yaml'"),
        (["--reasoning-parser", "yaml"], "must be one of auto, none, cohere, "),
        (["--chat-template-file", "/nowhere"], "be a file that can be read, not '/nowhere': No "),
        (["--chat-template-file", str(BROKEN)], "must hold a Jinja template: "),
        (["--chat-template-file", ""], "argument --chat-template-file: must not be empty"),
        (["--cpu-dtype", "int4"], "argument --cpu-dtype: invalid choice: 'int4'"),
        (["--mod", "x"], "unrecognized arguments: --mod x"),
        (["gemma"], "unrecognized arguments: gemma"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_value_exits_with_2_and_the_reason(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse_args(arguments, {})
    assert exit_info.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_bad_key_in_the_environment_exits_with_2_and_is_not_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse_args([], {"MLX_SERVER_API_KEY": "bad key"})
    assert exit_info.value.code == 2
    printed = capsys.readouterr().err
    assert "environment variable MLX_SERVER_API_KEY: must be printable ASCII" in printed
    assert "bad key" not in printed


def test_as_many_answers_may_be_written_as_may_wait() -> None:
    arguments = ["--max-num-seqs", "300", "--max-waiting", "300"]
    assert parse_args(arguments, {}) == engine(max_num_seqs=300, max_waiting=300)


def test_the_folder_of_the_prefix_cache_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert parse_args(["--prefix-cache-dir", str(folder)], {}) == engine(prefix_cache_dir=folder)
    assert list(folder.iterdir()) == []
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_the_prefix_cache_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "folder", Path("/proc/folder")):
        with pytest.raises(SystemExit) as exited:
            parse_args(["--prefix-cache-dir", str(folder)], {})
        assert exited.value.code == 2
        assert "--prefix-cache-dir: must be a folder that can be" in capsys.readouterr().err
