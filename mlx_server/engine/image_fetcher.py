"""Fetches images by http(s) URL within limits of address, bytes, redirects and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import httpx

from mlx_server import __version__
from mlx_server.config import MediaLimits
from mlx_server.engine.address_guard import AddressRefused, GuardedTransport
from mlx_server.engine.bad_image import BadImage

MAX_REDIRECTS = 5
CONNECT_TIMEOUT_S = 5.0
# A compressed body could grow without measure while it is unpacked.
HEADERS = {
    "Accept": "image/*",
    "Accept-Encoding": "identity",
    "User-Agent": f"mlx_server/{__version__}",
}


@asynccontextmanager
async def open_fetcher(limits: MediaLimits) -> AsyncIterator[ImageFetcher]:
    # reads the certificates, which takes longer than the event loop may stand still
    context = await asyncio.to_thread(httpx.create_ssl_context, trust_env=False)
    network = httpx.AsyncHTTPTransport(
        verify=context,
        trust_env=False,
        # a kept connection would answer for any host that has the same address
        limits=httpx.Limits(max_keepalive_connections=0),
    )
    transport = GuardedTransport(network, allow_private=limits.allow_private_urls)
    async with ImageFetcher(transport, limits) as fetcher:
        yield fetcher


class ImageFetcher:
    """A context manager that owns its transport, which must check addresses itself."""

    def __init__(self, transport: httpx.AsyncBaseTransport, limits: MediaLimits) -> None:
        self._limits = limits
        timeout_s = limits.fetch_timeout_s
        self._client = httpx.AsyncClient(
            transport=transport,
            trust_env=False,
            headers=HEADERS,
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
        )

    async def __aenter__(self) -> ImageFetcher:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def fetch(self, url: str) -> bytes:
        """The body behind `url`; raises BadImage."""
        try:
            async with asyncio.timeout(self._limits.fetch_timeout_s):
                return await self._follow(url)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise BadImage(
                f"The image's server did not send it within {self._limits.fetch_timeout_s:g} s. "
                "Send the image as a data: URL."
            ) from error
        except AddressRefused as error:
            raise BadImage(
                "The image's URL leads to an address that is not public. Send the image as a "
                "data: URL, or start the server with --allow-private-image-urls."
            ) from error
        except (httpx.InvalidURL, UnicodeError) as error:
            raise BadImage("The image's URL is not valid.") from error
        except httpx.HTTPError as error:
            raise BadImage(
                "The image's server cannot be reached or broke off. Send the image as a data: URL."
            ) from error

    async def _follow(self, url: str) -> bytes:
        _check(httpx.URL(url))
        request = self._client.build_request("GET", url)
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._client.send(request, stream=True)
            async with aclosing(response):
                if response.next_request is None:
                    return await self._read(response)
                request = response.next_request
                _check(request.url)
        raise BadImage(f"The image's URL redirects more than {MAX_REDIRECTS} times.")

    async def _read(self, response: httpx.Response) -> bytes:
        if response.status_code != httpx.codes.OK:
            raise BadImage(f"The image's server answered with status {response.status_code}.")
        self._check_length(int(response.headers.get("content-length", 0)))
        data = bytearray()
        async for chunk in response.aiter_raw():
            data += chunk
            self._check_length(len(data))
        return bytes(data)

    def _check_length(self, num_bytes: int) -> None:
        max_bytes = self._limits.max_image_bytes
        if num_bytes > max_bytes:
            raise BadImage(f"The image has more than {max_bytes} bytes. Send a smaller one.")


def _check(url: httpx.URL) -> None:
    if url.scheme not in ("http", "https"):
        raise BadImage("The image's URL leads to something that is not http or https.")
    if not url.host or not 0 < (url.port or 80) < 65536:
        raise BadImage("The image's URL is not valid.")
    if url.userinfo:
        raise BadImage("The image's URL must not hold a user name or password.")
