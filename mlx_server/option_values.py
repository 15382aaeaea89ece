"""What stands behind an option: text in, a value or a reason for the user out."""

from __future__ import annotations

import argparse
import math
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from mlx_server.config import LOCAL_PAGES
from mlx_server.parsers.names import AUTO, NONE
from mlx_server.parsers.tools.templates import template_fault

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


def parser_of(names: Mapping[str, str]) -> Callable[[str], str]:
    """Our own name for a format, or one of the words that name none."""

    def parse(text: str) -> str:
        if text in (AUTO, NONE):
            return text
        if text not in names:
            known = ", ".join([AUTO, NONE, *sorted(names)])
            raise argparse.ArgumentTypeError(f"must be one of {known}, not {text!r}")
        return names[text]

    return parse


def template_of(text: str) -> str:
    """The source of the template in that file."""
    path = Path(non_empty(text)).expanduser()
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        wanted = f"must be a file that can be read, not {text!r}: {reason}"
        raise argparse.ArgumentTypeError(wanted) from error
    if fault := template_fault(source):
        raise argparse.ArgumentTypeError(f"must hold a Jinja template: {text!r}, {fault}")
    return source


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
