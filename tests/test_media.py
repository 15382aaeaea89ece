import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from PIL import Image

from mlx_server.config import MediaLimits
from mlx_server.engine.media import LoadedImage, load_images
from mlx_server.engine.sequence import ImagePart
from mlx_server.errors import InvalidRequest
from tests.no_network import forbid_sockets
from tests.picture_server import (
    Answer,
    PictureServer,
    Request,
    content,
    drip,
    endless,
    hang,
    picture_server,
    redirect,
    status,
)
from tests.pictures import data_url, encode, png, png_bomb

PARAM = "messages.0.content.1.image_url"
NEAR = MediaLimits(allow_private_urls=True, fetch_timeout_s=5.0)
HTML = b"<!doctype html><html><body>not found</body></html>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>'


def load(urls: Sequence[str], limits: MediaLimits = NEAR) -> list[LoadedImage]:
    parts = [ImagePart(url, f"messages.0.content.{i}.image_url") for i, url in enumerate(urls)]
    return asyncio.run(load_images(parts, limits))


def refusal(url: str, limits: MediaLimits = NEAR) -> str:
    """The message of the error, which names the parameter and quotes nothing of the URL."""
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(load_images([ImagePart(url, PARAM)], limits))
    assert caught.value.param == PARAM
    host = url.partition("//")[2].partition("/")[0]
    assert not host or host not in caught.value.message
    return caught.value.message


def colour(image: LoadedImage) -> Any:
    return image.image.getpixel((0, 0))


def test_b098_images_keep_their_order_whatever_their_way() -> None:
    with picture_server({"/blue": content(png("blue"))}) as server:
        images = load([data_url(png("red")), f"{server.url}/blue", data_url(png("lime"))])
    assert [colour(image) for image in images] == [(255, 0, 0), (0, 0, 255), (0, 255, 0)]
    assert {image.image.mode for image in images} == {"RGB"}


def test_data_urls_need_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    async def decode() -> list[LoadedImage]:
        # not before: an event loop has a socket of its own
        forbid_sockets(monkeypatch)
        return await load_images([ImagePart(data_url(png()), PARAM)], NEAR)

    assert len(asyncio.run(decode())) == 1


def test_no_parts_are_no_images() -> None:
    assert load([]) == []


def test_b106_the_digest_is_that_of_pixels_and_shape() -> None:
    red, again, blue = load([data_url(png(c)) for c in ("red", "red", "blue")])
    wide, tall = load([data_url(png("red", size)) for size in ((16, 4), (4, 16))])
    assert red.digest == again.digest
    assert len({image.digest for image in (red, blue, wide, tall)}) == 4


def test_the_digest_does_not_depend_on_the_file_format() -> None:
    bmp = encode(Image.new("RGB", (8, 8), "red"), "BMP")
    as_png, as_bmp = load([data_url(png("red")), data_url(bmp)])
    assert as_png.digest == as_bmp.digest


def test_the_content_type_is_not_asked() -> None:
    with picture_server({"/x": content(png(), "text/html")}) as server:
        assert len(load([f" {server.url}/x\n"])) == 1


def test_redirects_are_followed() -> None:
    answers = {"/a": redirect("/b"), "/b": redirect("/c"), "/c": content(png())}
    with picture_server(answers) as server:
        assert len(load([f"{server.url}/a"])) == 1
        assert server.seen == ["/a", "/b", "/c"]


def test_a_host_by_name_is_told_its_name() -> None:
    with picture_server({"/x": content(png())}) as server:
        load([f"http://localhost:{server.server_port}/x"])
        assert server.headers[0]["Host"] == f"localhost:{server.server_port}"


def test_b100_an_answer_other_than_200_is_refused_with_its_status() -> None:
    with picture_server({"/500": status(500), "/304": status(304)}) as server:
        assert "status 404" in refusal(f"{server.url}/absent")
        assert "status 500" in refusal(f"{server.url}/500")
        assert "status 304" in refusal(f"{server.url}/304")


@pytest.mark.parametrize("data", [HTML, SVG, b"", b"\x89PNG\r\n\x1a\n"], ids=lambda d: d[:6])
def test_b100_content_that_is_no_picture_is_refused(data: bytes) -> None:
    with picture_server({"/x": content(data)}) as server:
        assert "Send PNG, JPEG" in refusal(f"{server.url}/x")
    assert "Send PNG, JPEG" in refusal(data_url(data))


@pytest.mark.parametrize("answer", [hang, drip], ids=["hang", "drip"])
def test_b100_a_server_that_does_not_finish_is_given_up(answer: Answer) -> None:
    limits = MediaLimits(allow_private_urls=True, fetch_timeout_s=0.3)
    begin = time.monotonic()
    with picture_server({"/x": answer}) as server:
        assert "within 0.3 s" in refusal(f"{server.url}/x", limits)
    assert time.monotonic() - begin < 3


def test_b100_a_refused_port_is_an_invalid_request() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        message = refusal(f"http://127.0.0.1:{unused.getsockname()[1]}/x")
    assert "cannot be reached" in message


def test_a_host_without_an_address_cannot_be_reached() -> None:
    assert "cannot be reached" in refusal("http://a..b/x")


def test_b102_more_images_than_the_limit_are_refused_before_any_work() -> None:
    with pytest.raises(InvalidRequest, match="at most 64 images") as caught:
        load(["data:,"] * 100)
    assert caught.value.param == "messages.0.content.64.image_url"


def test_b102_a_bomb_is_refused_before_it_is_decoded() -> None:
    begin = time.monotonic()
    assert "more than 50000000 pixels" in refusal(data_url(png_bomb(20_000)))
    assert time.monotonic() - begin < 3


def test_b102_a_photo_of_a_phone_is_taken() -> None:
    photo = encode(Image.new("RGB", (5712, 4284), "navy"), "JPEG")
    (image,) = load([data_url(photo)])
    assert image.image.size == (5712, 4284)


def test_b102_the_images_of_a_request_share_a_budget_of_pixels() -> None:
    limits = MediaLimits(max_image_pixels=64)
    assert len(load([data_url(png())] * 4, limits)) == 4
    with pytest.raises(InvalidRequest, match="more than 256 pixels together"):
        load([data_url(png())] * 5, limits)


def test_an_image_of_too_many_bytes_is_refused() -> None:
    limits = MediaLimits(allow_private_urls=True, max_image_bytes=64)
    with picture_server({"/x": content(png())}) as server:
        assert "more than 64 bytes" in refusal(f"{server.url}/x", limits)
    assert "more than 64 bytes" in refusal(data_url(png()), limits)


def test_b104_a_response_without_end_is_cut_at_the_byte_limit() -> None:
    limits = MediaLimits(allow_private_urls=True, max_image_bytes=1_000_000)
    with picture_server({"/x": endless}) as server:
        assert "more than 1000000 bytes" in refusal(f"{server.url}/x", limits)


def test_a_redirect_with_an_endless_body_is_followed_without_reading_it() -> None:
    def answer(request: Request) -> None:
        request.start(302, Location="/x", Content_Length=str(10**12))
        hang(request)

    with picture_server({"/a": answer, "/x": content(png())}) as server:
        assert len(load([f"{server.url}/a"])) == 1


def test_too_many_redirects_are_refused() -> None:
    with picture_server({"/x": redirect("/x")}) as server:
        assert "redirects more than 5 times" in refusal(f"{server.url}/x")
        assert len(server.seen) == 6


@pytest.mark.parametrize(
    "location", ["ftp://127.0.0.1/x", "file:///etc/hosts", "http://u:p@127.0.0.1/", "http://:0"]
)
def test_a_redirect_to_what_may_not_be_named_is_refused(location: str) -> None:
    with picture_server({"/x": redirect(location)}) as server:
        refusal(f"{server.url}/x")
        assert server.seen == ["/x"]


def guarded(server: PictureServer) -> list[str]:
    port = server.server_port
    hosts = ("127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "[::ffff:127.0.0.1]", "0")
    return [f"http://{host}:{port}/x" for host in hosts]


def test_b103_b104_this_machine_is_out_of_bounds_in_every_spelling() -> None:
    with picture_server({"/x": content(png())}) as server:
        for url in guarded(server):
            assert "not public" in refusal(url, MediaLimits())
        assert server.seen == []


def test_b103_no_connection_is_tried_to_an_address_that_is_not_public(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fetch(url: str) -> None:
        monkeypatch.setattr(
            asyncio.get_running_loop(), "create_connection", lambda *_, **__: pytest.fail("tried")
        )
        await load_images([ImagePart(url, PARAM)], MediaLimits())

    for host in ("169.254.169.254", "[::1]:8080", "10.0.0.1", "[fd00:ec2::254]", "100.100.100.200"):
        with pytest.raises(InvalidRequest, match="not public"):
            asyncio.run(fetch(f"http://{host}/latest/meta-data"))


@pytest.mark.parametrize(
    "url",
    ["file:///etc/hosts", "ftp://127.0.0.1/x", "/etc/hosts", "etc/hosts", "", "javascript:1"],
)
def test_b103_only_data_and_web_urls_are_images(url: str) -> None:
    assert "data:, http: or https:" in refusal(url)


@pytest.mark.parametrize(
    "url",
    ["http://", "https:///x", "http://x:99999/", "http://x:-1/", "http://x/\ud800", "http://x/\0"],
    ids=ascii,
)
def test_a_url_that_makes_no_sense_is_refused(url: str) -> None:
    assert "not valid" in refusal(url)


def test_a_password_in_the_url_is_refused() -> None:
    assert "user name" in refusal("http://user:secret@127.0.0.1/x")


def test_one_bad_image_ends_the_wait_for_the_others() -> None:
    begin = time.monotonic()
    with picture_server({"/hang": hang}) as server, pytest.raises(InvalidRequest) as caught:
        load([f"{server.url}/hang", data_url(HTML)], NEAR)
    assert caught.value.param == "messages.0.content.1.image_url"
    assert time.monotonic() - begin < 3


def test_four_images_are_fetched_side_by_side() -> None:
    gate = threading.Barrier(4)

    def answer(request: Request) -> None:
        # four requests have to be here together before any of them is answered
        gate.wait(timeout=5)
        content(png())(request)

    with picture_server({"/x": answer}) as server:
        assert len(load([f"{server.url}/x"] * 8)) == 8


def test_no_more_than_four_images_are_fetched_at_once() -> None:
    limits = MediaLimits(allow_private_urls=True, fetch_timeout_s=1.0)
    with picture_server({"/x": hang}) as server:
        with pytest.raises(InvalidRequest, match="within 1 s"):
            load([f"{server.url}/x"] * 8, limits)
        assert len(server.seen) == 4


def test_environment_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{unused.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with picture_server({"/x": content(png())}) as server:
            assert len(load([f"{server.url}/x"])) == 1
