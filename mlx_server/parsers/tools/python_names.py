"""Names of tools and of their parameters as Python can spell them, and the way back."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlx_server.parsers.tools.call import Tools

NOT_IN_NAMES = re.compile(r"\W")


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """`parameters` are the real names by their Python names, in the order of the schema."""

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    def parameter(self, python_name: str) -> str:
        """The real name; an undeclared parameter keeps the one it has."""
        return self.parameters.get(python_name, python_name)

    def spelled(self, names: Iterable[str]) -> Mapping[str, str]:
        """Python names by real name, of declared parameters and of others."""
        known = {real: python for python, real in self.parameters.items()}
        return {real: python for python, real in python_names([*known, *names]).items()}


def python_functions(tools: Tools) -> Mapping[str, PythonFunction]:
    """Functions by their Python names."""
    declared = {tool["function"]["name"]: tool["function"] for tool in tools}
    return {
        python: PythonFunction(real, python_names(properties(declared[real])))
        for python, real in python_names(declared).items()
    }


def properties(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters' schemas, none where the schema is not of the usual form."""
    schema = function.get("parameters")
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def python_names(names: Iterable[str]) -> Mapping[str, str]:
    """Real names by Python name, in the given order; names that fit keep theirs."""
    wanted = list(dict.fromkeys(names))
    taken = {name for name in wanted if is_python_name(name)}
    found: dict[str, str] = {}
    for name in wanted:
        python = name if name in taken else free_name(name, taken)
        taken.add(python)
        found[python] = name
    return found


def free_name(name: str, taken: Iterable[str]) -> str:
    python = NOT_IN_NAMES.sub("_", unicodedata.normalize("NFKC", name))
    if not is_python_name(python):
        python = f"{python}_" if keyword.iskeyword(python) else f"_{python}"
    while python in taken:
        python += "_"
    return python


def is_python_name(name: str) -> bool:
    # Python takes two spellings of a letter for the same one
    is_normal = unicodedata.normalize("NFKC", name) == name
    return is_normal and name.isidentifier() and not keyword.iskeyword(name)
