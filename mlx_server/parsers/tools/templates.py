"""What a chat template's source says of it, without rendering it."""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant wrote; transformers adds it to the language."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def template_knows_tools(chat_template: str | None) -> bool:
    """Whether the template reads the variable `tools`; a broken template knows nothing."""
    return "tools" in template_variables(chat_template)


@lru_cache(maxsize=8)  # asked for every prompt, of a few loaded models
def template_variables(chat_template: str | None) -> Set[str]:
    """The variables that the template reads and does not set; none of a broken one."""
    try:
        return jinja2.meta.find_undeclared_variables(_parse(chat_template or ""))
    except jinja2.TemplateError:
        return frozenset()


def template_fault(chat_template: str) -> str | None:
    """Why the text is no template, None if it is one."""
    try:
        _parse(chat_template)
    except jinja2.TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    return None


def _parse(chat_template: str) -> jinja2.nodes.Template:
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols", GenerationBlock])
    return environment.parse(chat_template)
