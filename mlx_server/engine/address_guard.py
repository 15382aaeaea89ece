"""Keeps requests that clients cause away from this machine and the networks around it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import httpx

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> the addresses behind it; raises OSError if there are none."""

# Written out, because what Python calls global differs from one version to the next.
SPECIAL_IPV4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "168.63.129.16/32",  # metadata of Azure, though in a public range
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",
        ),
    )
)
PUBLIC_IPV6 = IPv6Network("2000::/3")
SPECIAL_IPV6 = tuple(
    map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2620:4f:8000::/48"))
)
# An IPv4 address is in the last 32 bits; networks without IPv4 reach all of it by the second.
CARRIES_IPV4 = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))
MAX_ADDRESSES = 4


class AddressRefused(Exception):
    """A host has an address that is not on the public internet."""


def is_public(address: str) -> bool:
    """Whether the address is on the public internet; `address` as getaddrinfo gives it."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address) and any(ip in network for network in CARRIES_IPV4):
        ip = IPv4Address(int(ip) & 0xFFFFFFFF)
    if isinstance(ip, IPv4Address):
        return not any(ip in network for network in SPECIAL_IPV4)
    return ip in PUBLIC_IPV6 and not any(ip in network for network in SPECIAL_IPV6)


async def resolve_host(host: str, port: int) -> Sequence[str]:
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in infos]


class GuardedTransport(httpx.AsyncBaseTransport):
    """Connects only to addresses that it has checked itself, so a host cannot have another one by
    the time of the connection. Raises AddressRefused.

    A spelling such as 0x7f.1 needs no care: what counts is the address it stands for.
    """

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport,
        *,
        allow_private: bool = False,
        resolve: Resolve = resolve_host,
    ) -> None:
        self._inner = inner
        self._allow_private = allow_private
        self._resolve = resolve

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        addresses = await self._addresses(request.url)
        for address in addresses[:-1]:
            try:
                return await self._send(request, address)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._send(request, addresses[-1])

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _addresses(self, url: httpx.URL) -> Sequence[str]:
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            found = await self._resolve(url.raw_host.decode("ascii"), port)
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError("The host has no address.") from error
        if not self._allow_private and not all(map(is_public, found)):
            raise AddressRefused
        return list(dict.fromkeys(found))[:MAX_ADDRESSES]

    async def _send(self, request: httpx.Request, address: str) -> httpx.Response:
        """The certificate is checked against the host's name, as if it had been looked up again."""
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            extensions={**request.extensions, "sni_hostname": request.url.raw_host.decode("ascii")},
        )
        return await self._inner.handle_async_request(pinned)
