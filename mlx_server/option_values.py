"""What stands behind an option: text in, a value or a reason for the user out."""

from __future__ import annotations

import argparse
import math
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from mlx_server.config import LOCAL_PAGES

NO_ORIGINS = "none"

# Of whatever unit: what is above can be neither counted in 64 bits nor waited for.
MAX_NUMBER = 10**9


def non_empty(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def writable_folder(text: str) -> Path:
    folder = Path(non_empty(text)).expanduser().absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        wanted = f"must be a folder that can be written, not {text!r}: {error.strerror}"
        raise argparse.ArgumentTypeError(wanted) from error
    return folder


def whole_number(minimum: int, maximum: int = MAX_NUMBER) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= maximum:
            wanted = f"must be a whole number from {minimum} to {maximum}, not {text!r}"
            raise argparse.ArgumentTypeError(wanted)
        return value

    return parse


def number_above(minimum: float) -> Callable[[str], float]:
    return number_where(lambda value: value > minimum, f"above {minimum:g}")


def number_from(minimum: float) -> Callable[[str], float]:
    return number_where(lambda value: value >= minimum, f"of {minimum:g} or more")


def number_where(is_good: Callable[[float], bool], wanted: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not is_good(value):
            raise argparse.ArgumentTypeError(f"must be a number {wanted}, not {text!r}")
        if value > MAX_NUMBER:
            raise argparse.ArgumentTypeError(f"must be at most {MAX_NUMBER}, not {text!r}")
        return value

    return parse


def alias_of(text: str) -> tuple[str, str]:
    name, equals, model = (piece.strip() for piece in text.partition("="))
    if not (name and equals and model):
        raise argparse.ArgumentTypeError(f"must have the form NAME=MODEL, not {text!r}")
    return name, model


def api_key_of(text: str) -> str:
    if not re.fullmatch("[!-~]+", text):
        # HTTP strips blanks at the end of a header, and clients encode other letters differently.
        raise argparse.ArgumentTypeError("must be printable ASCII characters without blanks")
    return text


def origin_of(text: str) -> str:
    if text in ("*", LOCAL_PAGES, NO_ORIGINS):
        return text
    try:
        scheme, host, *rest = urlsplit(text)
    except ValueError:
        scheme, host, rest = "", "", []
    if not (scheme and host) or any(rest):
        words = ", ".join(map(repr, ("*", LOCAL_PAGES, NO_ORIGINS)))
        wanted = f"must be one of {words} or have the form http://host:port, not {text!r}"
        raise argparse.ArgumentTypeError(wanted)
    return text
