from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from mlx_server.engine.bad_image import BadImage
from mlx_server.engine.image_decoder import decode_image, open_image
from tests.pictures import encode, png, png_bomb

MAX_PIXELS = 1_000_000


def decode(data: bytes) -> Image.Image:
    image = decode_image(open_image(data, max_pixels=MAX_PIXELS))
    assert image.mode == "RGB"
    return image


def near(image: Image.Image, colour: tuple[int, int, int], at: tuple[int, int] = (0, 0)) -> bool:
    pixel = image.getpixel(at)
    assert isinstance(pixel, tuple)
    return all(abs(a - b) <= 8 for a, b in zip(pixel, colour, strict=True))


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF"])
def test_formats_are_told_by_their_content(file_format: str) -> None:
    image = decode(encode(Image.new("RGB", (20, 10), (200, 40, 60)), file_format))
    assert image.size == (20, 10)
    assert near(image, (200, 40, 60))


@pytest.mark.parametrize("file_format", ["TIFF", "PPM", "ICO", "TGA", "PDF"])
def test_other_formats_are_refused(file_format: str) -> None:
    with pytest.raises(BadImage, match="not in a format"):
        decode(encode(Image.new("RGB", (16, 16)), file_format))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_laid_over_white(mode: str) -> None:
    rgba = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    rgba.putpixel((1, 0), (0, 0, 0, 255))
    image = decode(encode(rgba.convert(mode)))
    assert near(image, (255, 255, 255))
    assert near(image, (0, 0, 0), (1, 0))


def test_a_transparent_colour_of_a_palette_is_white() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    image = decode(encode(palette, transparency=0))
    assert near(image, (255, 255, 255))
    assert near(image, (40, 50, 60), (1, 0))


def test_half_transparency_is_mixed_with_white() -> None:
    assert near(decode(encode(Image.new("RGBA", (1, 1), (0, 0, 0, 128)))), (127, 127, 127))


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_grey_and_palette_images_become_rgb(mode: str) -> None:
    assert near(decode(encode(Image.new("RGB", (4, 4), "white").convert(mode))), (255, 255, 255))


def test_cmyk_becomes_rgb() -> None:
    image = decode(encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG"))
    assert near(image, (254, 0, 0))


def test_sixteen_bits_are_scaled_and_not_cut_off() -> None:
    samples = np.array([[0, 0x0100, 0x8000, 0xFFFF]], dtype=np.uint16)
    image = decode(encode(Image.fromarray(samples)))
    assert [image.getpixel((x, 0)) for x in range(4)] == [
        (0, 0, 0),
        (1, 1, 1),
        (128, 128, 128),
        (255, 255, 255),
    ]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright(orientation: int) -> None:
    """Each tag is undone by what a camera did to write it."""
    upright = Image.new("RGB", (32, 16), "black")
    upright.paste("red", (0, 0, 16, 8))
    transpose = Image.Transpose
    written = {
        2: transpose.FLIP_LEFT_RIGHT,
        3: transpose.ROTATE_180,
        4: transpose.FLIP_TOP_BOTTOM,
        5: transpose.TRANSPOSE,
        6: transpose.ROTATE_90,
        7: transpose.TRANSVERSE,
        8: transpose.ROTATE_270,
    }.get(orientation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = upright if written is None else upright.transpose(written)
    image = decode(encode(stored, exif=exif))
    assert image.size == (32, 16)
    assert image.tobytes() == upright.tobytes()


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"x"])
def test_broken_exif_is_ignored(exif: bytes) -> None:
    assert decode(encode(Image.new("RGB", (8, 4)), "JPEG", exif=exif)).size == (8, 4)


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG", "AVIF"])
def test_the_first_frame_of_an_animation_is_taken(file_format: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    data = encode(frames[0], file_format, save_all=True, append_images=frames[1:])
    assert near(decode(data), (254, 0, 0))


def test_the_pictures_of_a_stereo_camera_are_read_as_the_first_of_them() -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    assert near(
        decode(encode(frames[0], "MPO", save_all=True, append_images=frames[1:])), (254, 0, 0)
    )


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF"])
def test_a_file_that_is_cut_off_is_refused(file_format: str) -> None:
    noise = Image.effect_noise((64, 64), 90).convert("RGB")
    data = encode(noise, file_format)
    with pytest.raises(BadImage):
        decode(data[: len(data) // 2])


@pytest.mark.parametrize("side", [1001, 12_000, 20_000])
def test_b102_the_header_alone_is_enough_to_refuse_a_bomb(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(BadImage, match="more than 1000000 pixels"):
        open_image(png_bomb(side), max_pixels=MAX_PIXELS)


def test_an_image_of_the_largest_size_is_taken() -> None:
    assert decode(png_bomb(1000)).size == (1000, 1000)


def damaged(data: bytes) -> Iterator[bytes]:
    """The file with one byte changed, at every place of its first part in turn."""
    for place in range(8, min(len(data), 200)):
        for value in (0x00, 0x7F, 0xFF):
            yield data[:place] + bytes([value]) + data[place + 1 :]


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF"])
def test_damage_is_a_refusal_or_a_picture_and_nothing_else(file_format: str) -> None:
    data = encode(Image.new("RGB", (12, 10), "teal"), file_format)
    for broken in damaged(data):
        try:
            decode(broken)
        except BadImage as error:
            assert str(error)


def test_an_ordinary_file_is_opened_without_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    data = png()
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    assert open_image(data, max_pixels=MAX_PIXELS).size == (8, 8)
