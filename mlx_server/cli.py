"""The command line: turns its options into one ServerConfig.

The only reader of argv and of the environment.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence

from mlx_server.config import GIB, MIB, EngineConfig, KVQuantisation, MediaLimits, ServerConfig
from mlx_server.option_values import NO_ORIGINS, api_key_of
from mlx_server.options import API_KEY_VARIABLE, DEFAULT_KV, DEFAULTS, build_parser

NEEDED = {
    "--kv-group-size": "--kv-bits",
    "--quantized-kv-start": "--kv-bits",
    "--prefix-cache-disk-gb": "--prefix-cache-dir",
}
"""Options that mean nothing without another one."""


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
    refuse_contradictions(parser, options)
    return ServerConfig(
        models=tuple(options.model or DEFAULTS.models),
        aliases=dict(options.alias),
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


def refuse_contradictions(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exits for options that are good by themselves but not with the others."""
    for name, needed in NEEDED.items():
        if value_of(options, name) is not None and value_of(options, needed) is None:
            parser.error(f"argument {name}: needs {needed} as well")
    if (options.max_num_seqs or 0) > options.max_waiting:
        parser.error(
            "argument --max-num-seqs: must not be above --max-waiting, which is "
            f"{options.max_waiting} and counts those that are written as well"
        )
    if len(dict(options.alias)) < len(options.alias):
        parser.error("argument --alias: gives the same NAME twice")


def value_of(options: argparse.Namespace, name: str) -> object:
    return getattr(options, name.removeprefix("--").replace("-", "_"))


def engine_config_of(options: argparse.Namespace) -> EngineConfig:
    engine = DEFAULTS.engine
    return EngineConfig(
        prefill_step_size=options.prefill_step_size,
        context_length=options.context_length,
        default_max_tokens=options.default_max_tokens,
        memory_limit_bytes=bytes_of(options.memory_limit_gb),
        prefix_cache_bytes=bytes_of(options.prefix_cache_gb),
        kv_quantisation=kv_quantisation_of(options),
        max_num_seqs=options.max_num_seqs or engine.max_num_seqs,
        max_decode_stall_s=options.max_decode_stall_ms / 1000,
        swap_patience_s=options.swap_patience_s,
        prefix_cache_dir=options.prefix_cache_dir,
        prefix_cache_disk_bytes=(
            bytes_of(options.prefix_cache_disk_gb) or engine.prefix_cache_disk_bytes
        ),
        max_waiting=options.max_waiting,
        request_timeout_s=options.request_timeout_s,
        cpu_dtype=options.cpu_dtype,
        tool_call_parser=options.tool_call_parser,
        reasoning_parser=options.reasoning_parser,
        chat_template=options.chat_template,
        trust_remote_code=options.trust_remote_code,
        media=MediaLimits(
            allow_private_urls=options.allow_private_image_urls,
            max_image_bytes=int(options.max_image_mb * MIB),
        ),
    )


def bytes_of(gib: float | None) -> int | None:
    return None if gib is None else int(gib * GIB)


def kv_quantisation_of(options: argparse.Namespace) -> KVQuantisation | None:
    if options.kv_bits is None:
        return None
    return KVQuantisation(
        options.kv_bits,
        options.kv_group_size or DEFAULT_KV.group_size,
        options.quantized_kv_start or DEFAULT_KV.start,
    )


def origins_of(given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return DEFAULTS.cors_origins
    return tuple(origin for origin in given if origin != NO_ORIGINS)
