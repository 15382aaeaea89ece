"""What the terminal says when the server starts, or why it does not."""

from __future__ import annotations

import errno
import json
import shlex
import socket

from mlx_server.config import ServerConfig
from mlx_server.options import API_KEY_VARIABLE

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def url_of(listening: socket.socket) -> str:
    """A URL that reaches the socket from this machine."""
    host, port = listening.getsockname()[:2]
    host = ANY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def greeting(url: str, model: str, *, needs_key: bool) -> str:
    """The URL, and a command that can be pasted into a shell as it is."""
    request = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
    key = f' -H "Authorization: Bearer ${API_KEY_VARIABLE}"' if needs_key else ""
    return (
        f"Serving {model} on {url}/v1 (Ctrl+C stops it). Try it:\n\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} "
        f"-d {shlex.quote(json.dumps(request))}\n"
    )


def model_missing(model: str, reason: str) -> str:
    """Three lines: that the model cannot be had, why, and what to do."""
    small = "" if model == "smollm2" else "Run ./run.sh smollm2 for a small model without a hub. "
    return (
        f"The model {model} cannot be had, and so the server does not start.\n"
        f"{' '.join(reason.split())}\n"
        f"{small}Any other model may be named, by its folder or alias, with --model."
    )


def model_failed(model: str, reason: str) -> str:
    return f"The model {model} could not be loaded, and so the server stops: {reason}"


def stopping(drain_s: float) -> str:
    return f"Stopping: running answers have {drain_s:g} s to end. Ctrl+C again ends them now."


def cannot_listen(config: ServerConfig, error: OSError) -> str:
    where = f"port {config.port} on {config.host}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"Cannot listen on {where}: another program has it. Choose another with --port."
        case errno.EACCES:
            return f"Cannot listen on {where}: no right to. Choose one above 1023 with --port."
    return f"Cannot listen on {where}: it is no address of this machine. Choose one with --host."
