"""The options of the command line: names, types, defaults and what --help says of them."""

from __future__ import annotations

import argparse
from pathlib import Path

from mlx_server.config import GIB, LOCAL_PAGES, MIB, KVQuantisation, ServerConfig
from mlx_server.option_values import (
    NO_ORIGINS,
    alias_of,
    api_key_of,
    non_empty,
    number_above,
    number_from,
    origin_of,
    parser_of,
    template_of,
    whole_number,
    writable_folder,
)
from mlx_server.parsers.names import AUTO, NONE, REASONING_PARSERS, TOOL_PARSERS

API_KEY_VARIABLE = "MLX_SERVER_API_KEY"
CPU_DTYPES = ("float32", "bfloat16", "float16", "checkpoint")
LOG_LEVELS = ("debug", "info", "warning", "error")

DEFAULTS = ServerConfig()
DEFAULT_KV = KVQuantisation(bits=8)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mlx_server",
        description="Serve language and vision models on MLX through the OpenAI API.",
        # An abbreviation would change its meaning when an option is added.
        allow_abbrev=False,
    )
    add_model_options(parser.add_argument_group("models"))
    http = parser.add_argument_group("HTTP")
    add_access_options(http)
    add_stream_options(http)
    limits = parser.add_argument_group("limits")
    add_size_options(limits)
    add_load_options(limits)
    add_scheduling_options(parser.add_argument_group("scheduling"))
    kv_state = parser.add_argument_group("KV state")
    add_prefix_cache_options(kv_state)
    add_quantisation_options(kv_state)
    add_image_options(parser.add_argument_group("images"))
    add_operation_options(parser.add_argument_group("operation"))
    return parser


def add_model_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        action="append",
        type=non_empty,
        metavar="PATH|REPO|ALIAS",
        help="a checkpoint folder, a Hugging Face repository or an alias (gemma, qwen, smollm2); "
        "may be given more than once: the first is loaded at start and serves requests that name "
        f"no model (default: {DEFAULTS.models[0]})",
    )
    group.add_argument(
        "--alias",
        action="append",
        default=[],
        type=alias_of,
        metavar="NAME=MODEL",
        help="another name by which requests may ask for a model; may be given more than once",
    )
    add_format_options(group)
    group.add_argument(
        "--cpu-dtype",
        choices=CPU_DTYPES,
        default=DEFAULTS.engine.cpu_dtype,
        help="type of the weights when the model runs on a CPU; 'checkpoint' leaves them as they "
        "are, quantised or not (default: %(default)s)",
    )
    group.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="load checkpoints that bring Python code of their own, and run that code",
    )
    group.add_argument(
        "--cache-dir",
        type=lambda text: Path(non_empty(text)).expanduser(),
        default=DEFAULTS.cache_dir,
        metavar="PATH",
        help="folder for what the server keeps between runs (default: %(default)s)",
    )


def add_format_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--chat-template-file",
        type=template_of,
        dest="chat_template",
        metavar="PATH",
        help="a chat template in Jinja for all models (default: that of the checkpoint)",
    )
    for name, names, what in (
        ("--tool-call-parser", TOOL_PARSERS, "tool calls"),
        ("--reasoning-parser", REASONING_PARSERS, "reasoning"),
    ):
        group.add_argument(
            name,
            type=parser_of(names),
            default=AUTO,
            metavar="NAME",
            help=f"the format in which models write {what}; '{NONE}' leaves the text as it is "
            "(default: what the chat template shows)",
        )


def add_access_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host",
        type=non_empty,
        default=DEFAULTS.host,
        help="address to listen on; 0.0.0.0 for every one of this machine (default: %(default)s)",
    )
    group.add_argument(
        "--port",
        type=whole_number(0, 65535),
        default=DEFAULTS.port,
        help="port to listen on; 0 takes a free one (default: %(default)s)",
    )
    group.add_argument(
        "--api-key",
        type=api_key_of,
        metavar="KEY",
        help="key that requests must carry; better set in the environment variable "
        f"{API_KEY_VARIABLE}, which other users cannot see (default: none, everybody may ask)",
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        type=origin_of,
        metavar="ORIGIN",
        help="web page origin whose scripts may read answers, as in http://localhost:3000; may be "
        f"given more than once; '{LOCAL_PAGES}' is all that this machine serves, '*' every origin, "
        f"'{NO_ORIGINS}' none (default: {' '.join(DEFAULTS.cors_origins)})",
    )


def add_stream_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--heartbeat-s",
        type=number_above(0),
        default=DEFAULTS.heartbeat_s,
        metavar="SECONDS",
        help="a stream that has nothing to say sends a comment this often (default: %(default)g)",
    )
    group.add_argument(
        "--always-include-usage",
        action="store_true",
        help="end every stream with the token counts, whether or not the request asks for them",
    )


def add_size_options(group: argparse._ArgumentGroup) -> None:
    engine = DEFAULTS.engine
    group.add_argument(
        "--max-body-mb",
        type=number_above(0),
        default=DEFAULTS.max_body_bytes / MIB,
        metavar="MIB",
        help="largest request body in MiB (default: %(default)g)",
    )
    group.add_argument(
        "--context-length",
        type=whole_number(1),
        default=engine.context_length,
        metavar="TOKENS",
        help="most tokens of prompt and answer together (default: what the model allows)",
    )
    group.add_argument(
        "--default-max-tokens",
        type=whole_number(1),
        default=engine.default_max_tokens,
        metavar="TOKENS",
        help="longest answer to a request that sets no limit (default: up to the end of the "
        "context)",
    )


def add_load_options(group: argparse._ArgumentGroup) -> None:
    engine = DEFAULTS.engine
    group.add_argument(
        "--max-waiting",
        type=whole_number(1),
        default=engine.max_waiting,
        metavar="N",
        help="most answers that wait or are written at a time, further requests get status 429 "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--request-timeout-s",
        type=number_above(0),
        default=engine.request_timeout_s,
        metavar="SECONDS",
        help="an answer that takes longer is cut off (default: %(default)g)",
    )
    group.add_argument(
        "--memory-limit-gb",
        type=number_above(0),
        default=engine.memory_limit_bytes,
        metavar="GIB",
        help="memory in GiB for models, KV state and what it takes to compute text "
        "(default: what the device recommends, on a CPU most of what is free)",
    )


def add_scheduling_options(group: argparse._ArgumentGroup) -> None:
    engine = DEFAULTS.engine
    group.add_argument(
        "--max-num-seqs",
        type=whole_number(1),
        metavar="N",
        help="answers that are written at a time, further ones wait; no more than --max-waiting "
        f"(default: {engine.max_num_seqs})",
    )
    group.add_argument(
        "--max-decode-stall-ms",
        type=number_above(0),
        default=engine.max_decode_stall_s * 1000,
        metavar="MS",
        help="running answers wait no longer than this for the next piece of a new prompt, if "
        "their model takes prompts in pieces (default: %(default)g)",
    )
    group.add_argument(
        "--swap-patience-s",
        type=number_from(0),
        default=engine.swap_patience_s,
        metavar="SECONDS",
        help="how long the loaded model takes new requests while others wait for another model "
        "(default: %(default)g)",
    )
    group.add_argument(
        "--prefill-step-size",
        type=whole_number(1),
        default=engine.prefill_step_size,
        metavar="TOKENS",
        help="a prompt is read in pieces of this size; smaller ones keep running answers fluent, "
        "larger ones are faster (default: what suits the device)",
    )


def add_prefix_cache_options(group: argparse._ArgumentGroup) -> None:
    engine = DEFAULTS.engine
    group.add_argument(
        "--prefix-cache-gb",
        type=number_from(0),
        default=engine.prefix_cache_bytes,
        metavar="GIB",
        help="memory in GiB for prompts that were read before, 0 for none "
        "(default: a share of the memory limit)",
    )
    group.add_argument(
        "--prefix-cache-dir",
        type=writable_folder,
        default=engine.prefix_cache_dir,
        metavar="PATH",
        help="folder in which prompts that were read before are kept as well, so that they outlive "
        "the server and changes of models; it holds what users have written (default: none)",
    )
    group.add_argument(
        "--prefix-cache-disk-gb",
        type=number_above(0),
        metavar="GIB",
        help="most that --prefix-cache-dir may take in GiB "
        f"(default: {engine.prefix_cache_disk_bytes / GIB:g})",
    )


def add_quantisation_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--kv-bits",
        type=int,
        choices=(4, 8),
        help="keep keys and values in so many bits; saves memory and costs some exactness; sliding "
        "windows, recurrent state and the last of more than two layers stay exact "
        "(default: as the model computes them)",
    )
    group.add_argument(
        "--kv-group-size",
        type=int,
        choices=(32, 64, 128),
        help="values that share a scale, with --kv-bits; must divide the size of the model's "
        f"attention heads (default: {DEFAULT_KV.group_size})",
    )
    group.add_argument(
        "--quantized-kv-start",
        type=whole_number(0),
        metavar="TOKENS",
        help="prompts shorter than this keep exact keys and values, with --kv-bits "
        f"(default: {DEFAULT_KV.start})",
    )


def add_image_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--allow-private-image-urls",
        action="store_true",
        help="fetch images from this machine and its private networks as well",
    )
    group.add_argument(
        "--max-image-mb",
        type=number_above(0),
        default=DEFAULTS.engine.media.max_image_bytes / MIB,
        metavar="MIB",
        help="largest image file in MiB (default: %(default)g)",
    )


def add_operation_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--drain-s",
        type=number_from(0),
        default=DEFAULTS.drain_s,
        metavar="SECONDS",
        help="the server has ended so long after it is told to stop; running answers may go on "
        "until half a second before (default: %(default)g)",
    )
    group.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default=DEFAULTS.log_level,
        help="least important messages to log; 'info' has a line for every request "
        "(default: %(default)s)",
    )
