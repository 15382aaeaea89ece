import base64

import pytest

from mlx_server.engine.bad_image import BadImage
from mlx_server.engine.data_url import decode_data_url

DATA = bytes(range(256)) + b"\xfb\xff\xfe"
BASE64 = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{BASE64}",
        f"DATA:IMAGE/PNG;BASE64,{BASE64}",
        f"data:;base64,{BASE64}",
        f"data:image/png;name=a.png;base64 ,{BASE64}",
        f"data:image/png;base64,{BASE64.rstrip('=')}",
        f"data:image/png;base64,{base64.urlsafe_b64encode(DATA).decode()}",
        f"data:image/png;base64,{base64.encodebytes(DATA).decode()}",
        f"data:image/png;base64, {BASE64}\r\n",
        "data:image/png;base64," + BASE64.replace("+", "%2B").replace("/", "%2f"),
        "data:image/png," + "".join(f"%{byte:02x}" for byte in DATA),
    ],
    ids=[
        "plain",
        "capitals",
        "no type",
        "parameters",
        "no padding",
        "url-safe",
        "lines",
        "spaces",
        "percent in base64",
        "percent",
    ],
)
def test_every_way_to_write_it_gives_the_same_bytes(url: str) -> None:
    assert decode_data_url(url, max_bytes=1000) == DATA


@pytest.mark.parametrize(
    "payload", ["!!!!", "AAAAA", "AA=A", "A", "é", "\ud800", "AAAA\0"], ids=ascii
)
def test_what_is_not_base64_is_refused(payload: str) -> None:
    with pytest.raises(BadImage, match="not valid base64"):
        decode_data_url(f"data:image/png;base64,{payload}", max_bytes=1000)


def test_a_url_without_a_comma_is_refused() -> None:
    with pytest.raises(BadImage, match="comma"):
        decode_data_url("data:image/png;base64", max_bytes=1000)


@pytest.mark.parametrize("url", [f"data:;base64,{BASE64}", f"data:,{'x' * 259}"])
def test_the_limit_counts_decoded_bytes(url: str) -> None:
    assert len(decode_data_url(url, max_bytes=259)) == 259
    with pytest.raises(BadImage, match="more than 258 bytes"):
        decode_data_url(url, max_bytes=258)
