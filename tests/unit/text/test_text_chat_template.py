"""Templates render in the immutable sandbox; what they refuse is an error with the reason, not a crash."""

import pytest

from app.text.chat_template import ChatTemplateError, render_chat

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def render(template: str | None, *, generate: bool = False) -> str:
    """Render the two messages."""
    return render_chat(template, MESSAGES, add_generation_prompt=generate, bos="<s>", eos="</s>")


def test_without_a_template_chatml_is_used() -> None:
    assert render(None, generate=True) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_sees_bos_and_eos() -> None:
    assert render("{{ bos_token }}{{ messages|length }}{{ eos_token }}") == "<s>2</s>"


def test_block_lines_leave_no_blank_lines() -> None:
    template = "{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}"
    assert render(template) == "user\nassistant\n"


def test_raise_exception_gives_its_message() -> None:
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append('x') }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{% if %}",
        "{{ undefined_name.field }}",
    ],
)
def test_unsafe_or_broken_template_is_refused(template: str) -> None:
    with pytest.raises(ChatTemplateError, match="chat template"):
        render(template)


def test_rendering_leaves_the_messages_alone() -> None:
    before = [dict(message) for message in MESSAGES]
    render("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert before == MESSAGES
