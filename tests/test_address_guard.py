import asyncio
import socket
import ssl
from collections.abc import Sequence

import httpx
import pytest

from mlx_server.engine.address_guard import (
    AddressRefused,
    GuardedTransport,
    Resolve,
    is_public,
    resolve_host,
)

PUBLIC = "93.184.216.34"
PUBLIC_IPV6 = "2606:4700:4700::1111"


@pytest.mark.parametrize(
    "address",
    [PUBLIC, "8.8.8.8", "172.32.0.1", "100.128.0.1", PUBLIC_IPV6, "64:ff9b::808:808"],
)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.0.9",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "168.63.129.16",
        "192.0.0.192",
        "100.100.100.200",
        "198.18.0.1",
        "203.0.113.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "2001:db8::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%2",
        "fec0::1",
        "ff02::1",
    ],
)
def test_addresses_of_this_machine_and_its_networks_are_not_public(address: str) -> None:
    assert not is_public(address)


class Recorder(httpx.MockTransport):
    """Stands where the network is; hosts in `dead` refuse connections."""

    def __init__(self, *dead: str) -> None:
        super().__init__(self.answer)
        self.dead = dead
        self.requests: list[httpx.Request] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.host in self.dead:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, text="here")


def resolve_to(*answers: Sequence[str]) -> Resolve:
    """Each look-up has the next answer."""
    remaining = iter(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return next(remaining)

    return resolve


def get(transport: GuardedTransport, url: str = "https://pictures.example:8443/x?y") -> str:
    async def send() -> str:
        async with httpx.AsyncClient(transport=transport) as client:
            return (await client.get(url)).text

    return asyncio.run(send())


def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    network = Recorder()
    # a second look-up, as in DNS rebinding, would find this machine
    assert get(GuardedTransport(network, resolve=resolve_to([PUBLIC], ["127.0.0.1"]))) == "here"
    (request,) = network.requests
    assert request.url == f"https://{PUBLIC}:8443/x?y"
    assert request.headers["host"] == "pictures.example:8443"
    assert request.extensions["sni_hostname"] == "pictures.example"


@pytest.mark.parametrize("addresses", [["127.0.0.1"], [PUBLIC, "10.0.0.1"], ["::1", PUBLIC]])
def test_one_address_that_is_not_public_is_enough_to_refuse(addresses: list[str]) -> None:
    network = Recorder()
    with pytest.raises(AddressRefused):
        get(GuardedTransport(network, resolve=resolve_to(addresses)))
    assert network.requests == []


def test_private_addresses_may_be_allowed() -> None:
    network = Recorder()
    transport = GuardedTransport(network, allow_private=True, resolve=resolve_to(["127.0.0.1"]))
    assert get(transport) == "here"


def test_the_next_address_is_tried_if_one_does_not_answer() -> None:
    network = Recorder(PUBLIC_IPV6)
    transport = GuardedTransport(network, resolve=resolve_to([PUBLIC_IPV6, PUBLIC_IPV6, PUBLIC]))
    assert get(transport) == "here"
    assert [request.url.host for request in network.requests] == [PUBLIC_IPV6, PUBLIC]


def test_a_host_none_of_whose_addresses_answers_is_a_connection_error() -> None:
    transport = GuardedTransport(Recorder(PUBLIC), resolve=resolve_to([PUBLIC]))
    with pytest.raises(httpx.ConnectError):
        get(transport)


@pytest.mark.parametrize("spelling", ["127.0.0.1", "2130706433", "0x7f.0.0.1", "127.1"])
def test_the_system_resolves_every_spelling_of_an_address(spelling: str) -> None:
    assert asyncio.run(resolve_host(spelling, 80)) == ["127.0.0.1"]


def test_a_host_that_does_not_exist_is_a_connection_error() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(-2, "unknown")

    with pytest.raises(httpx.ConnectError):
        get(GuardedTransport(Recorder(), resolve=resolve))


def test_tls_is_spoken_to_the_name_and_not_to_the_address() -> None:
    names: list[str] = []

    async def serve_and_ask() -> None:
        server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_context.sni_callback = lambda _, name, __: names.append(name)
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=server_context)
        port = server.sockets[0].getsockname()[1]
        transport = GuardedTransport(
            httpx.AsyncHTTPTransport(trust_env=False),
            allow_private=True,
            resolve=resolve_to(["127.0.0.1"]),
        )
        async with server, httpx.AsyncClient(transport=transport) as client:
            # the server has no certificate to show
            with pytest.raises(httpx.ConnectError):
                await client.get(f"https://pictures.example:{port}/")

    asyncio.run(serve_and_ask())
    assert names == ["pictures.example"]
