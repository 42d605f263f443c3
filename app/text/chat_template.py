"""Renders chat messages with the base model's own template, in jinja2's immutable sandbox."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

# For base models without a template: ChatML, the form most small instruction models learn.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ChatTemplateError(ValueError):
    """The template refused the messages or cannot be used; the message says why."""


def _raise(message: str) -> NoReturn:
    raise ChatTemplateError(message)


@lru_cache(maxsize=16)
def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.globals["raise_exception"] = _raise
    return environment.from_string(source)


def render_chat(
    template: str | None,
    messages: Sequence[dict[str, str]],
    *,
    add_generation_prompt: bool,
    bos: str = "",
    eos: str = "",
) -> str:
    """Return the messages as one string. Raises ChatTemplateError."""
    try:
        return _compile(template or CHATML).render(
            messages=list(messages), add_generation_prompt=add_generation_prompt, bos_token=bos, eos_token=eos
        )
    except TemplateError as error:
        raise ChatTemplateError(f"chat template: {error}") from error
