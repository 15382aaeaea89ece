"""Proof that a piece of code stays on this machine."""

from __future__ import annotations

import socket
from typing import Any, NoReturn

import pytest


def forbid_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection and every look-up of a host fails the test from here on."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        pytest.fail("a socket was used")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
