"""The images of a request: from the URL to decoded pixels, or to an error that names the part."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from PIL import Image

from mlx_server.config import MediaLimits
from mlx_server.engine.bad_image import BadImage
from mlx_server.engine.data_url import decode_data_url
from mlx_server.engine.image_decoder import decode_image, open_image
from mlx_server.engine.image_fetcher import ImageFetcher, open_fetcher
from mlx_server.engine.sequence import ImagePart
from mlx_server.errors import InvalidRequest

MAX_AT_ONCE = 4
# All images of a request stay in memory together; none of them alone may be larger than a quarter.
MAX_FULL_SIZE_IMAGES = 4


@dataclass(frozen=True, slots=True, eq=False)
class LoadedImage:
    """An RGB image; `digest` is the same for the same pixels in the same shape."""

    image: Image.Image
    digest: bytes


async def load_images(parts: Sequence[ImagePart], limits: MediaLimits) -> list[LoadedImage]:
    """The images in the order of `parts`; raises InvalidRequest for the first one that fails."""
    if not parts:
        return []
    if len(parts) > limits.max_images:
        raise InvalidRequest(
            f"A request holds at most {limits.max_images} images.",
            param=parts[limits.max_images].param,
        )
    async with AsyncExitStack() as stack:
        fetcher = None
        if any(_is_remote(part) for part in parts):
            fetcher = await stack.enter_async_context(open_fetcher(limits))
        return await _Loader(limits, fetcher).load_all(parts)


class _Loader:
    """The work on the images of one request."""

    def __init__(self, limits: MediaLimits, fetcher: ImageFetcher | None) -> None:
        self._limits = limits
        self._fetcher = fetcher
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._num_pixels_left = limits.max_image_pixels * MAX_FULL_SIZE_IMAGES

    async def load_all(self, parts: Sequence[ImagePart]) -> list[LoadedImage]:
        tasks = [asyncio.create_task(self._load(part)) for part in parts]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _load(self, part: ImagePart) -> LoadedImage:
        async with self._places:
            try:
                data = await self._read(part)
                image = await asyncio.to_thread(
                    open_image, data, max_pixels=self._limits.max_image_pixels
                )
                self._take_pixels(image.width * image.height)
                return await asyncio.to_thread(_finish, image)
            except BadImage as error:
                raise InvalidRequest(str(error), param=part.param) from error

    async def _read(self, part: ImagePart) -> bytes:
        url = part.url.strip()
        if url[:5].lower() == "data:":
            return await asyncio.to_thread(
                decode_data_url, url, max_bytes=self._limits.max_image_bytes
            )
        if self._fetcher is None or not _is_remote(part):
            raise BadImage("An image must be given by a data:, http: or https: URL.")
        return await self._fetcher.fetch(url)

    def _take_pixels(self, num_pixels: int) -> None:
        self._num_pixels_left -= num_pixels
        if self._num_pixels_left < 0:
            total = self._limits.max_image_pixels * MAX_FULL_SIZE_IMAGES
            raise BadImage(
                f"The images of the request have more than {total} pixels together. Send fewer or "
                "smaller ones."
            )


def _is_remote(part: ImagePart) -> bool:
    return part.url.lstrip()[:8].lower().startswith(("http://", "https://"))


def _finish(image: Image.Image) -> LoadedImage:
    rgb = decode_image(image)
    digest = hashlib.sha256(f"{rgb.width}x{rgb.height}:".encode())
    digest.update(rgb.tobytes())
    return LoadedImage(rgb, digest.digest())
