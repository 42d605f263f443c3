"""Examples and prompts as token ids with a loss mask: mask[t] = 1 where predicting token t counts."""

from dataclasses import dataclass

from app.contracts.base_models import BaseModelInfo
from app.text.chat_template import ChatTemplateError, render_chat
from app.text.examples import ChatExample, CompletionExample, Example
from app.text.tokenizer import TextTokenizer, tokenizer_for


@dataclass(frozen=True)
class TokenizedExample:
    """Token ids and, of the same length, the loss mask (position 0 never counts: nothing predicts it)."""

    token_ids: list[int]
    loss_mask: list[int]


def _render(info: BaseModelInfo, tokenizer: TextTokenizer, messages: list[dict[str, str]], *, generate: bool) -> str:
    bos = "" if info.bos_token_id is None else tokenizer.token(info.bos_token_id)
    eos = tokenizer.token(info.eos_token_ids[0]) if info.eos_token_ids else ""
    return render_chat(info.chat_template, messages, add_generation_prompt=generate, bos=bos, eos=eos)


def tokenize_prompt(info: BaseModelInfo, messages: list[dict[str, str]]) -> list[int]:
    """Return the ids of a conversation, ready for the assistant's next turn. Raises ChatTemplateError."""
    tokenizer = tokenizer_for(info)
    return tokenizer.encode(_render(info, tokenizer, messages, generate=True))


def _tokenize_chat(info: BaseModelInfo, example: ChatExample) -> TokenizedExample:
    tokenizer = tokenizer_for(info)
    messages = [{"role": m.role, "content": m.content} for m in example.messages]
    ids: list[int] = []
    mask: list[int] = []
    done = ""

    def extend(upto: str, *, learn: bool) -> None:
        nonlocal done
        if not upto.startswith(done):
            raise ChatTemplateError("the chat template rewrites earlier turns, so assistant turns cannot be located")
        piece = tokenizer.encode(upto[len(done) :])
        last = max((i for i, t in enumerate(piece) if t in info.eos_token_ids), default=len(piece) - 1)
        ids.extend(piece)
        mask.extend([1 if learn and i <= last else 0 for i in range(len(piece))])
        done = upto

    for i, message in enumerate(example.messages):
        if message.role == "assistant":
            extend(_render(info, tokenizer, messages[:i], generate=True), learn=False)
            extend(_render(info, tokenizer, messages[: i + 1], generate=False), learn=message.weight != 0)
    return TokenizedExample(ids, [0, *mask[1:]])


def tokenize_example(info: BaseModelInfo, example: Example) -> TokenizedExample:
    """Return ids and loss mask of a training example. Raises ChatTemplateError.

    Chat: assistant turns count, up to and including their end token. Completion: the completion and the end token
    count. Text: every token but the first counts.
    """
    tokenizer = tokenizer_for(info)
    if isinstance(example, ChatExample):
        return _tokenize_chat(info, example)
    if isinstance(example, CompletionExample):
        prompt = tokenizer.encode(example.prompt)
        completion = tokenizer.encode(example.completion) + info.eos_token_ids[:1]
        mask = [0] * len(prompt) + [1] * len(completion)
        return TokenizedExample(prompt + completion, [0, *mask[1:]])
    ids = tokenizer.encode(example.text)
    return TokenizedExample(ids, [0, *[1] * (len(ids) - 1)])
