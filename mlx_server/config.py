"""The settings of one server, built once from the command line and never changed.

Nothing else reads argv or os.environ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1024 * 1024
GIB = 1024 * MIB
LOCAL_PAGES = "local"
"""Stands among `cors_origins` for every page that this machine itself serves."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """What an image of a request may cost; `allow_private_urls` lets it come from this machine's
    own networks.
    """

    allow_private_urls: bool = False
    max_image_bytes: int = 32 * MIB
    max_image_pixels: int = 50_000_000
    max_images: int = 64
    fetch_timeout_s: float = 20.0


@dataclass(frozen=True, slots=True)
class KVQuantisation:
    """Sequences with a prompt of at least `start` tokens keep keys and values in `bits` bits."""

    bits: int
    group_size: int = 64
    start: int = 0

    @property
    def variant(self) -> str:
        """Names the KV state, which must not be mixed with any other."""
        return f"q{self.bits}g{self.group_size}"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How models are loaded and run. `None` leaves a limit to the checkpoint or to the machine.

    `memory_limit_bytes` bounds weights, KV state and what text and prepared images take beside
    them, not images before that. Without a `prefix_cache_dir` no KV state is written to disk. The
    parsers are formats by name, `auto` for what the checkpoint's template tells, `none` for none; a
    `chat_template` is used instead of the checkpoint's.
    """

    prefill_step_size: int | None = None
    context_length: int | None = None
    default_max_tokens: int | None = None
    memory_limit_bytes: int | None = None
    prefix_cache_bytes: int | None = None
    kv_quantisation: KVQuantisation | None = None
    max_num_seqs: int = 32
    max_decode_stall_s: float = 0.25
    swap_patience_s: float = 5.0
    prefix_cache_dir: Path | None = None
    prefix_cache_disk_bytes: int = 20 * GIB
    max_waiting: int = 256
    request_timeout_s: float = 1800.0
    cpu_dtype: str = "float32"
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    chat_template: str | None = None
    trust_remote_code: bool = False
    media: MediaLimits = MediaLimits()


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """`models` are paths, repo ids or aliases; the first one is loaded at start and serves requests
    that name none.
    """

    models: tuple[str, ...] = ("gemma",)
    aliases: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 1234
    api_key: str | None = None
    cors_origins: tuple[str, ...] = (LOCAL_PAGES,)
    max_body_bytes: int = 64 * MIB
    body_idle_timeout_s: float = 30.0
    body_total_timeout_s: float = 300.0
    heartbeat_s: float = 10.0
    drain_s: float = 5.0
    always_include_usage: bool = False
    log_level: str = "info"
    cache_dir: Path = Path.home() / ".cache" / "mlx_server"
    engine: EngineConfig = EngineConfig()
