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
    cache_gb, memory_gb = options.prefix_cache_gb, options.memory_limit_gb
    return EngineConfig(
        prefill_step_size=options.prefill_step_size,
        context_length=options.context_length,
        default_max_tokens=options.default_max_tokens,
        memory_limit_bytes=None if memory_gb is None else int(memory_gb * GIB),
        prefix_cache_bytes=None if cache_gb is None else int(cache_gb * GIB),
        kv_quantisation=kv_quantisation_of(options),
        max_num_seqs=options.max_num_seqs,
        max_decode_stall_s=options.max_decode_stall_ms / 1000,
        swap_patience_s=options.swap_patience_s,
        prefix_cache_dir=options.prefix_cache_dir,
        prefix_cache_disk_bytes=int(options.prefix_cache_disk_gb * GIB),
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


def origins_of(given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return DEFAULTS.cors_origins
    return tuple(origin for origin in given if origin != NO_ORIGINS)
