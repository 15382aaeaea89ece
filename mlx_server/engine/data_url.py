"""data: URLs, as strict clients and sloppy ones write them."""

from __future__ import annotations

import base64
import binascii
import string
from urllib.parse import unquote_to_bytes

from mlx_server.engine.bad_image import BadImage

URL_SAFE = bytes.maketrans(b"-_", b"+/")
WHITESPACE = string.whitespace.encode()


def decode_data_url(url: str, *, max_bytes: int) -> bytes:
    """The content of the URL, whatever type it claims; raises BadImage."""
    header, comma, payload = url.partition(",")
    if not comma:
        raise BadImage("The image's data: URL has no comma between its type and its data.")
    try:
        data = unquote_to_bytes(payload) if "%" in payload else payload.encode()
        if header.rstrip().lower().endswith(";base64"):
            data = _decode_base64(data, max_bytes)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise BadImage("The image's data: URL is not valid base64, or is cut off.") from error
    if len(data) > max_bytes:
        raise _too_long(max_bytes)
    return data


def _decode_base64(text: bytes, max_bytes: int) -> bytes:
    """Takes the alphabet for URLs as well, line breaks, and absent padding."""
    digits = text.translate(URL_SAFE, WHITESPACE).rstrip(b"=")
    if len(digits) * 3 // 4 > max_bytes:
        raise _too_long(max_bytes)
    return base64.b64decode(digits + b"=" * (-len(digits) % 4), validate=True)


def _too_long(max_bytes: int) -> BadImage:
    return BadImage(f"The image has more than {max_bytes} bytes. Send a smaller one.")
