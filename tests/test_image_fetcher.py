import asyncio
from collections.abc import Sequence

import httpx
import pytest

from mlx_server.config import MediaLimits
from mlx_server.engine.address_guard import GuardedTransport
from mlx_server.engine.bad_image import BadImage
from mlx_server.engine.image_fetcher import ImageFetcher

PUBLIC = "93.184.216.34"
ADDRESSES = {"pictures.example": PUBLIC, "inside.example": "10.0.0.7"}


class Web(httpx.MockTransport):
    """The web behind the guard: every host redirects to `location`, but for the path /end."""

    def __init__(self, location: str) -> None:
        super().__init__(self.answer)
        self.location = location
        self.seen: list[str] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(str(request.url))
        if request.url.path == "/end":
            return httpx.Response(200, stream=httpx.ByteStream(b"picture"))
        return httpx.Response(302, headers={"Location": self.location})


async def look_up(host: str, port: int) -> Sequence[str]:
    return [ADDRESSES.get(host, host)]


def fetch(web: Web, url: str) -> bytes:
    async def run() -> bytes:
        transport = GuardedTransport(web, resolve=look_up)
        async with ImageFetcher(transport, MediaLimits()) as fetcher:
            return await fetcher.fetch(url)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:8080/end",
        "http://[::1]/end",
        "//127.0.0.1/end",
        "https://inside.example/end",
        "http://169.254.169.254/end",
    ],
)
def test_b104_a_redirect_from_a_public_host_to_a_private_one_is_refused(location: str) -> None:
    web = Web(location)
    with pytest.raises(BadImage, match="not public"):
        fetch(web, "http://pictures.example/start")
    assert web.seen == [f"http://{PUBLIC}/start"]


@pytest.mark.parametrize(
    "location", ["file:///etc/hosts", "ftp://pictures.example/end", "gopher://x/end"]
)
def test_b104_a_redirect_away_from_the_web_is_refused(location: str) -> None:
    web = Web(location)
    with pytest.raises(BadImage, match="not http or https"):
        fetch(web, "http://pictures.example/start")
    assert len(web.seen) == 1


def test_a_redirect_between_public_hosts_is_followed() -> None:
    web = Web("https://pictures.example/end")
    assert fetch(web, "http://pictures.example/start") == b"picture"
    assert web.seen == [f"http://{PUBLIC}/start", f"https://{PUBLIC}/end"]


@pytest.mark.parametrize("location", ["http://[::1", "http://x:99999/", "data:,x"])
def test_a_redirect_to_nonsense_is_refused(location: str) -> None:
    web = Web(location)
    with pytest.raises(BadImage):
        fetch(web, "http://pictures.example/start")
    assert len(web.seen) == 1
