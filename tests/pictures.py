"""Image files and data: URLs made from them."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

from PIL import Image


def encode(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def png(colour: str = "red", size: tuple[int, int] = (8, 8)) -> bytes:
    return encode(Image.new("RGB", size, colour))


def png_bomb(side: int) -> bytes:
    """A black square of 1-bit pixels: a thousandth of the bytes that it unpacks to."""
    rows = zlib.compress(bytes(1 + (side + 7) // 8) * side, 1)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, *zip(*chunks, strict=True)))


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()
