"""What a chat template's source says about tools, without rendering it."""

from __future__ import annotations

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


@lru_cache(maxsize=8)  # asked for every prompt, of a few loaded models
def template_knows_tools(chat_template: str | None) -> bool:
    """Whether the template reads the variable `tools`; a broken template knows nothing."""
    if not chat_template or "tools" not in chat_template:
        return False
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols", GenerationBlock])
    try:
        tree = environment.parse(chat_template)
        return "tools" in jinja2.meta.find_undeclared_variables(tree)
    except jinja2.TemplateError:
        return False
