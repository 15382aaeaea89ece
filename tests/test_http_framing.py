"""Raw requests over a socket: every way to frame a body that routers use, mangle or abuse."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator

import pytest

from mlx_server.config import MIB, ServerConfig
from mlx_server.main import create_app
from tests.fake_engine import answering
from tests.live_server import Address, LiveEngine, live_server
from tests.oneapi_client import (
    CHAT,
    Connection,
    Response,
    channel_test,
    chunk,
    chunked,
    converted,
    head,
    passthrough,
)
from tests.toy_app import add_echo

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
QUESTION = {"model": "fake", "messages": [{"role": "user", "content": "hi there"}]}
BODY = json.dumps(QUESTION, separators=(",", ":")).encode()
SIZE = len(BODY)
LIMIT = 100_000

HAS_HTTPTOOLS = importlib.util.find_spec("httptools") is not None
PARSERS = [
    pytest.param(None, id="h11"),
    pytest.param(
        "httptools", marks=pytest.mark.skipif(not HAS_HTTPTOOLS, reason="is not installed")
    ),
]


def serve(http: str | None = None, **config: float) -> Iterator[Address]:
    settings = ServerConfig(max_body_bytes=LIMIT, drain_s=0.0, **config)  # type: ignore[arg-type]
    app = create_app(settings, LiveEngine(answering("hello").script))  # type: ignore[arg-type]
    with live_server(add_echo(app), settings, http=http) as address:
        yield address


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    """A server with the parser that is used."""
    yield from serve()


@pytest.fixture(scope="module", params=PARSERS)
def any_address(request: pytest.FixtureRequest) -> Iterator[Address]:
    """A server with each of the parsers that are installed."""
    yield from serve(request.param)


@pytest.fixture(scope="module", params=PARSERS)
def impatient(request: pytest.FixtureRequest) -> Iterator[Address]:
    """A server that waits for bodies hardly at all."""
    yield from serve(request.param, body_idle_timeout_s=0.15, body_total_timeout_s=0.6)


def ask(address: Address, framed: bytes, *, path: str = CHAT) -> Response:
    """The answer to a request with this framing header and body."""
    with Connection(address) as connection:
        return connection.ask(head(path) + framed)


def assert_is_answer(response: Response) -> None:
    assert response.status == 200
    assert response.json["choices"][0]["message"]["content"] == "hello"


def assert_is_refusal(response: Response, status: int) -> None:
    assert response.status == status
    assert response.headers["content-type"] == "application/json"
    assert set(response.json["error"]) == {"message", "type", "param", "code"}


def in_pieces(*cuts: int) -> bytes:
    edges = [0, *cuts, SIZE]
    pieces = [BODY[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    return b"".join(chunk(piece) for piece in pieces) + b"0\r\n\r\n"


ACCEPTED = {
    "content-length": b"Content-Length: %d\r\n\r\n" % SIZE + BODY,
    "one chunk, as Go sends it": CHUNKED + chunked(BODY),
    "chunks of 1 byte": CHUNKED + chunked(BODY, 1),
    "chunks of 7 bytes": CHUNKED + chunked(BODY, 7),
    "chunks of 20 bytes": CHUNKED + chunked(BODY, 20),
    "b001 a boundary inside a word": CHUNKED + in_pieces(20, BODY.index(b"content") + 3),
    "leading zeros": CHUNKED + b"000000%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "hex in capitals": CHUNKED + b"%X\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "extensions": CHUNKED + chunk(BODY, extension=b';a=b;c="q"') + b"0;last\r\n\r\n",
    "trailers": b"Trailer: X-Sum\r\n" + CHUNKED + chunk(BODY) + b"0\r\nX-Sum: 1\r\n\r\n",
    "long head": b"X-Long: " + b"x" * 8000 + b"\r\n" + CHUNKED + chunked(BODY),
}


@pytest.mark.parametrize("framing", ACCEPTED)
def test_a_body_is_read_however_it_is_framed(any_address: Address, framing: str) -> None:
    assert_is_answer(ask(any_address, ACCEPTED[framing]))


ACCEPTED_BY_H11 = {
    "space after the size": CHUNKED + b"%x \r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "two equal lengths": b"Content-Length: %d\r\n" % SIZE * 2 + b"\r\n" + BODY,
}


@pytest.mark.parametrize("framing", ACCEPTED_BY_H11)
def test_harmless_oddities_are_read(address: Address, framing: str) -> None:
    assert_is_answer(ask(address, ACCEPTED_BY_H11[framing]))


def test_a_body_may_come_in_a_packet_for_every_byte(any_address: Address) -> None:
    with Connection(any_address) as connection:
        for byte in head() + CHUNKED + chunked(BODY, 20):
            connection.send(bytes([byte]))
        assert_is_answer(connection.response())


def test_one_connection_serves_requests_of_both_framings(any_address: Address) -> None:
    with Connection(any_address) as connection:
        for _ in range(3):
            assert_is_answer(connection.ask(passthrough(CHAT, QUESTION)))
            assert_is_answer(connection.ask(converted(CHAT, QUESTION)))


def test_requests_in_one_write_are_answered_in_turn(any_address: Address) -> None:
    with Connection(any_address) as connection:
        connection.send(3 * passthrough(CHAT, QUESTION))
        for _ in range(3):
            assert_is_answer(connection.response())


def test_a_client_that_waits_for_permission_gets_it(any_address: Address) -> None:
    with Connection(any_address) as connection:
        assert connection.ask(head() + b"Expect: 100-continue\r\n" + CHUNKED).status == 100
        assert_is_answer(connection.ask(chunked(BODY)))


def test_trailers_do_not_become_headers(address: Address) -> None:
    framed = CHUNKED + chunk(BODY) + b"0\r\nX-Sum: 1\r\nHost: evil\r\n\r\n"
    headers = ask(address, framed, path="/echo").json["headers"]
    assert headers["host"] == "127.0.0.1"
    assert "x-sum" not in headers


def test_the_channel_test_of_a_router_passes(any_address: Address) -> None:
    with Connection(any_address) as connection:
        response = connection.ask(channel_test("fake"))
    assert response.status == 200
    assert isinstance(response.json["choices"][0]["message"]["content"], str)
    assert type(response.json["created"]) is int


def test_an_empty_key_and_accept_are_no_obstacle(any_address: Address) -> None:
    with Connection(any_address) as connection:
        assert_is_answer(connection.ask(passthrough(CHAT, QUESTION, key="", accept="")))


def test_an_empty_chunked_body_is_refused_in_the_error_shape(any_address: Address) -> None:
    assert_is_refusal(ask(any_address, CHUNKED + b"0\r\n\r\n"), 400)


REFUSED_BY_THE_PARSER = {
    "no number for a size": CHUNKED + b"zz\r\n" + BODY + b"\r\n0\r\n\r\n",
    "size with 0x": CHUNKED + b"0x%x\r\n" % SIZE + BODY + b"\r\n0\r\n\r\n",
    "negative size": CHUNKED + b"-1\r\n" + BODY + b"\r\n0\r\n\r\n",
    "size with a plus": CHUNKED + b"+%x\r\n" % SIZE + BODY + b"\r\n0\r\n\r\n",
    "empty size line": CHUNKED + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "space before the extension": CHUNKED + b"%x ;x\r\n" % SIZE + BODY + b"\r\n0\r\n\r\n",
    "size too small": CHUNKED + b"%x\r\n" % (SIZE - 3) + BODY + b"\r\n0\r\n\r\n",
    "size of 21 digits": CHUNKED + b"%021x\r\n" % SIZE + BODY + b"\r\n0\r\n\r\n",
    "two different lengths": b"Content-Length: %d\r\nContent-Length: 5\r\n\r\n" % SIZE + BODY,
    "gzip before chunked": b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked(BODY),
    "xchunked": b"Transfer-Encoding: xchunked\r\n\r\n" + chunked(BODY),
    "chunked twice": b"Transfer-Encoding: chunked\r\n" + CHUNKED + chunked(BODY),
    "space before the colon": b"Transfer-Encoding : chunked\r\n\r\n" + chunked(BODY),
}


@pytest.mark.parametrize("framing", REFUSED_BY_THE_PARSER)
def test_broken_framing_is_refused_and_the_connection_closed(
    address: Address, framing: str
) -> None:
    with Connection(address) as connection:
        assert connection.ask(head() + REFUSED_BY_THE_PARSER[framing]).status == 400
        assert connection.is_closed


def test_a_request_without_a_host_is_refused(address: Address) -> None:
    without_host = head().replace(b"Host: 127.0.0.1\r\n", b"")
    with Connection(address) as connection:
        assert connection.ask(without_host + CHUNKED + chunked(BODY)).status == 400


OVERSIZED = {
    "head line": b"X-Long: " + b"x" * 300_000 + b"\r\n" + CHUNKED + chunked(BODY),
    "chunk extension": CHUNKED + chunk(BODY, extension=b";" + b"x" * 300_000) + b"0\r\n\r\n",
    "trailer": CHUNKED + chunk(BODY) + b"0\r\nX-Sum: " + b"x" * 300_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("framing", OVERSIZED)
def test_framing_that_never_ends_is_cut_off(address: Address, framing: str) -> None:
    with Connection(address) as connection:
        try:
            assert connection.ask(head() + OVERSIZED[framing]).status == 400
        except ConnectionError:
            # What we still had to send met the closed connection, which takes the answer along.
            return
        assert connection.is_closed


def test_both_framings_at_once_are_refused_and_the_connection_closed(address: Address) -> None:
    with Connection(address) as connection:
        framed = b"Content-Length: 5\r\n" + CHUNKED + chunked(BODY)
        assert_is_refusal(connection.ask(head() + framed), 400)
        assert connection.is_closed


def test_a_smuggled_request_is_not_served(address: Address) -> None:
    smuggled = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with Connection(address) as connection:
        framed = b"Content-Length: 4\r\n" + CHUNKED + b"0\r\n\r\n" + smuggled
        assert_is_refusal(connection.ask(head() + framed), 400)
        assert connection.is_closed


def test_a_compressed_body_is_refused(any_address: Address) -> None:
    framed = b"Content-Encoding: gzip\r\n" + CHUNKED + chunked(b"\x1f\x8b\x08")
    assert_is_refusal(ask(any_address, framed), 415)


def test_a_client_that_leaves_in_the_middle_of_a_body_hurts_nobody(any_address: Address) -> None:
    with Connection(any_address) as connection:
        connection.send(head() + CHUNKED + b"%x\r\n" % SIZE + BODY[:20])
    assert_is_answer(ask(any_address, CHUNKED + chunked(BODY)))


ENDLESS = {
    "bare line feeds": CHUNKED + chunked(BODY).replace(b"\r\n", b"\n"),
    "a size of 16 digits": CHUNKED + b"ffffffffffffffff\r\n" + BODY,
    "a missing last chunk": CHUNKED + chunk(BODY),
    "a length beyond the body": b"Content-Length: %d\r\n\r\n" % (SIZE + 1) + BODY,
}


@pytest.mark.parametrize("framing", ENDLESS)
def test_a_body_that_does_not_end_is_given_up(impatient: Address, framing: str) -> None:
    with Connection(impatient) as connection:
        response = connection.ask(head() + ENDLESS[framing])
        # httptools does not wait where the line feeds are bare.
        if response.headers["content-type"] != "text/plain; charset=utf-8":
            assert_is_refusal(response, 408)
        assert connection.is_closed


def test_a_body_that_drips_is_given_up(impatient: Address) -> None:
    stop = threading.Event()

    def drip(connection: Connection) -> None:
        while not stop.wait(0.05):
            connection.send(chunk(b" "))

    with Connection(impatient) as connection:
        connection.send(head() + CHUNKED)
        thread = threading.Thread(target=drip, args=[connection])
        thread.start()
        try:
            assert_is_refusal(connection.response(), 408)
        finally:
            stop.set()
            thread.join()


def test_a_declared_length_over_the_limit_is_refused_and_the_connection_kept(
    any_address: Address,
) -> None:
    with Connection(any_address) as connection:
        too_long = b"Content-Length: 5000000\r\n\r\n" + b"x" * 5_000_000
        assert_is_refusal(connection.ask(head() + too_long), 413)
        assert_is_answer(connection.ask(passthrough(CHAT, QUESTION)))


@pytest.mark.parametrize("size", [200_000, 5_000_000, 20_000_000])
@pytest.mark.parametrize("chunk_size", [None, 32 * 1024], ids=["one chunk", "32 KiB chunks"])
def test_a_client_that_reads_after_its_last_byte_sees_that_its_body_is_too_large(
    any_address: Address, size: int, chunk_size: int | None
) -> None:
    with Connection(any_address) as connection:
        connection.send(head() + CHUNKED + chunked(b"x" * size, chunk_size))
        assert_is_refusal(connection.response(), 413)
        assert_is_answer(connection.ask(passthrough(CHAT, QUESTION)))


def test_a_client_that_waits_for_permission_to_send_too_much_is_refused_at_once(
    any_address: Address,
) -> None:
    with Connection(any_address) as connection:
        declared = b"Expect: 100-continue\r\nContent-Length: 300000\r\n\r\n"
        assert_is_refusal(connection.ask(head() + declared), 413)
        assert connection.is_closed


LARGE = {
    "60 MB in one chunk": (60_000_000, None),
    "60 MB in chunks of 32 KiB": (60_000_000, 32 * 1024),
    "20 kB in chunks of 1 byte": (20_000, 1),
}


@pytest.mark.parametrize("http", PARSERS)
@pytest.mark.parametrize(("size", "chunk_size"), LARGE.values(), ids=LARGE)
def test_a_large_body_arrives_whole(http: str | None, size: int, chunk_size: int | None) -> None:
    settings = ServerConfig(max_body_bytes=64 * MIB, drain_s=0.0)
    app = add_echo(create_app(settings, LiveEngine()))  # type: ignore[arg-type]
    with live_server(app, settings, http=http) as address:
        response = ask(address, CHUNKED + chunked(b"x" * size, chunk_size), path="/echo")
    assert response.json["num_bytes"] == size


def test_many_connections_at_once_are_served(any_address: Address) -> None:
    statuses: list[int] = []

    def work(number: int) -> None:
        with Connection(any_address) as connection:
            for turn in range(5):
                padding = "x" * (number * 997 * turn)
                payload = {**QUESTION, "user": padding}
                statuses.append(connection.ask(passthrough(CHAT, payload)).status)

    threads = [threading.Thread(target=work, args=[number]) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 80
