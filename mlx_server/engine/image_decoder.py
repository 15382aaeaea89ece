"""Bytes of an image file -> upright RGB pixels."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.Image import Transpose

from mlx_server.engine.bad_image import BadImage

# Not TIFF: its library writes what it finds wrong to stderr, and clients would fill the log.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF")
# What Pillow raises on damaged files: its readers trust the numbers that they find in them.
DECODE_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    OverflowError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
)
BOMB_ERRORS = (Image.DecompressionBombError, Image.DecompressionBombWarning)
ORIENTATION_TAG = 0x0112
UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}


def open_image(data: bytes, *, max_pixels: int) -> Image.Image:
    """The image with its size known and its pixels not yet decoded; raises BadImage."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise BadImage(
            "The image's content is not in a format that this server reads. Send PNG, JPEG, WebP, "
            "GIF, BMP or AVIF."
        ) from error
    except BOMB_ERRORS as error:
        raise _too_large(max_pixels) from error
    except DECODE_ERRORS as error:
        raise BadImage("The image's data is damaged.") from error
    num_pixels = image.width * image.height
    if num_pixels > max_pixels:
        raise _too_large(max_pixels)
    if num_pixels == 0:
        raise BadImage("The image has no pixels.")
    return image


def decode_image(image: Image.Image) -> Image.Image:
    """The first frame in RGB, upright, on white where it was transparent; raises BadImage."""
    try:
        image.load()
        return _to_rgb(_turn_upright(image))
    except BOMB_ERRORS + DECODE_ERRORS as error:
        raise BadImage("The image's data is damaged or cut off.") from error


def _too_large(max_pixels: int) -> BadImage:
    return BadImage(f"The image has more than {max_pixels} pixels. Send a smaller one.")


def _turn_upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(ORIENTATION_TAG)
    except DECODE_ERRORS:
        return image
    transpose = UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if transpose is None else image.transpose(transpose)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        # Pillow would cut off everything above 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    page = Image.new("RGB", rgba.size, "white")
    page.paste(rgba, mask=rgba.getchannel("A"))
    return page
