"""The command line: turns its options into one ServerConfig.

The only reader of argv and of the environment.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from mlx_server.config import (
    LOCAL_PAGES,
    MIB,
    EngineConfig,
    KVQuantisation,
    MediaLimits,
    ServerConfig,
)

GIB = 1024 * MIB
API_KEY_VARIABLE = "MLX_SERVER_API_KEY"
CPU_DTYPES = ("float32", "bfloat16", "float16", "checkpoint")
LOG_LEVELS = ("debug", "info", "warning", "error")
NO_ORIGINS = "none"

DEFAULTS = ServerConfig()
DEFAULT_KV = KVQuantisation(bits=8)


def parse_args(
    argv: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> ServerConfig:
    """The settings that `argv` asks for; exits with status 2 and a reason if it asks wrongly."""
    parser = build_parser()
    options = parser.parse_args(argv)
    api_key = options.api_key
    if api_key is None and environment.get(API_KEY_VARIABLE):
        try:
            api_key = api_key_of(environment[API_KEY_VARIABLE])
        except argparse.ArgumentTypeError as error:
            parser.error(f"environment variable {API_KEY_VARIABLE}: {error}")
    if options.kv_bits is None:
        for name in ("kv_group_size", "quantized_kv_start"):
            if getattr(options, name) is not None:
                parser.error(f"argument --{name.replace('_', '-')}: needs --kv-bits as well")
    aliases = dict(options.alias)
    if len(aliases) < len(options.alias):
        parser.error("argument --alias: gives the same NAME twice")
    return ServerConfig(
        models=tuple(options.model or DEFAULTS.models),
        aliases=aliases,
        host=options.host,
        port=options.port,
        api_key=api_key,
        cors_origins=origins_of(options.cors_origin),
        max_body_bytes=int(options.max_body_mb * MIB),
        heartbeat_s=options.heartbeat_s,
        drain_s=options.drain_s,
        always_include_usage=options.always_include_usage,
        log_level=options.log_level,
        cache_dir=options.cache_dir,
        engine=engine_config_of(options),
    )


def engine_config_of(options: argparse.Namespace) -> EngineConfig:
    cache_gb = options.prefix_cache_gb
    return EngineConfig(
        prefill_step_size=options.prefill_step_size,
        context_length=options.context_length,
        default_max_tokens=options.default_max_tokens,
        prefix_cache_bytes=None if cache_gb is None else int(cache_gb * GIB),
        kv_quantisation=kv_quantisation_of(options),
        max_num_seqs=options.max_num_seqs,
        max_decode_stall_s=options.max_decode_stall_ms / 1000,
        swap_patience_s=options.swap_patience_s,
        max_waiting=options.max_waiting,
        request_timeout_s=options.request_timeout_s,
        cpu_dtype=options.cpu_dtype,
        trust_remote_code=options.trust_remote_code,
        media=MediaLimits(
            allow_private_urls=options.allow_private_image_urls,
            max_image_bytes=int(options.max_image_mb * MIB),
        ),
    )


def kv_quantisation_of(options: argparse.Namespace) -> KVQuantisation | None:
    if options.kv_bits is None:
        return None
    return KVQuantisation(
        options.kv_bits,
        options.kv_group_size or DEFAULT_KV.group_size,
        options.quantized_kv_start or DEFAULT_KV.start,
    )


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mlx_server",
        description="Serve language and vision models on MLX through the OpenAI API.",
        # An abbreviation would change its meaning when an option is added.
        allow_abbrev=False,
    )
    add_model_options(parser.add_argument_group("models"))
    add_http_options(parser.add_argument_group("HTTP"))
    add_limit_options(parser.add_argument_group("limits"))
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


def add_http_options(group: argparse._ArgumentGroup) -> None:
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


def add_limit_options(group: argparse._ArgumentGroup) -> None:
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
    group.add_argument(
        "--max-num-seqs",
        type=whole_number(1),
        default=engine.max_num_seqs,
        metavar="N",
        help="answers that are written at a time, further ones wait (default: %(default)s)",
    )
    group.add_argument(
        "--max-decode-stall-ms",
        type=number_above(0),
        default=engine.max_decode_stall_s * 1000,
        metavar="MS",
        help="running answers wait no longer than this for the next piece of a new prompt "
        "(default: %(default)g)",
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
        "--max-waiting",
        type=whole_number(1),
        default=engine.max_waiting,
        metavar="N",
        help="requests that are taken in at a time, further ones get status 429 "
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
        "--prefix-cache-gb",
        type=number_from(0),
        default=engine.prefix_cache_bytes,
        metavar="GIB",
        help="memory in GiB for prompts that were read before, 0 for none "
        "(default: a share of the machine's)",
    )
    group.add_argument(
        "--kv-bits",
        type=int,
        choices=(4, 8),
        help="keep keys and values in so many bits; saves memory and costs some exactness "
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
    group.add_argument(
        "--prefill-step-size",
        type=whole_number(1),
        default=engine.prefill_step_size,
        metavar="TOKENS",
        help="a prompt is read in pieces of this size; smaller ones keep running answers fluent, "
        "larger ones are faster (default: what suits the device)",
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
        help="running answers may go on this long once the server is told to stop "
        "(default: %(default)g)",
    )
    group.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default=DEFAULTS.log_level,
        help="least important messages to log; 'info' has a line for every request "
        "(default: %(default)s)",
    )


def non_empty(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def whole_number(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    wanted = f"from {minimum} to {maximum}" if maximum is not None else f"of {minimum} or more"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            raise argparse.ArgumentTypeError(f"must be a whole number {wanted}, not {text!r}")
        return value

    return parse


def number_above(minimum: float) -> Callable[[str], float]:
    return number_where(lambda value: value > minimum, f"above {minimum:g}")


def number_from(minimum: float) -> Callable[[str], float]:
    return number_where(lambda value: value >= minimum, f"of {minimum:g} or more")


def number_where(is_good: Callable[[float], bool], wanted: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not is_good(value):
            raise argparse.ArgumentTypeError(f"must be a number {wanted}, not {text!r}")
        return value

    return parse


def alias_of(text: str) -> tuple[str, str]:
    name, equals, model = (piece.strip() for piece in text.partition("="))
    if not (name and equals and model):
        raise argparse.ArgumentTypeError(f"must have the form NAME=MODEL, not {text!r}")
    return name, model


def api_key_of(text: str) -> str:
    if not re.fullmatch("[!-~]+", text):
        # HTTP strips blanks at the end of a header, and clients encode other letters differently.
        raise argparse.ArgumentTypeError("must be printable ASCII characters without blanks")
    return text


def origin_of(text: str) -> str:
    if text in ("*", LOCAL_PAGES, NO_ORIGINS):
        return text
    try:
        scheme, host, *rest = urlsplit(text)
    except ValueError:
        scheme, host, rest = "", "", []
    if not (scheme and host) or any(rest):
        words = ", ".join(map(repr, ("*", LOCAL_PAGES, NO_ORIGINS)))
        wanted = f"must be one of {words} or have the form http://host:port, not {text!r}"
        raise argparse.ArgumentTypeError(wanted)
    return text


def origins_of(given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return DEFAULTS.cors_origins
    return tuple(origin for origin in given if origin != NO_ORIGINS)
