"""What is learnt from an example: exactly the assistant's words and the token that ends them."""

import pytest

from app.contracts.base_models import BaseModelInfo
from app.text.chat_template import ChatTemplateError, render_chat
from app.text.examples import ChatExample, ChatMessage, CompletionExample, TextExample
from app.text.tokenize import TokenizedExample, tokenize_example, tokenize_prompt
from app.text.tokenizer import tokenizer_for


def chat(*turns: tuple[str, str] | tuple[str, str, int]) -> ChatExample:
    """Return a conversation of (role, content[, weight]) turns."""
    return ChatExample(
        messages=[
            ChatMessage.model_validate({"role": t[0], "content": t[1]} | ({"weight": t[2]} if len(t) > 2 else {}))
            for t in turns
        ]
    )


def learnt(info: BaseModelInfo, tokenized: TokenizedExample) -> list[str]:
    """Return the runs of masked tokens as text."""
    runs: list[list[int]] = []
    previous = 0
    for token, counts in zip(tokenized.token_ids, tokenized.loss_mask, strict=True):
        if counts and not previous:
            runs.append([])
        if counts:
            runs[-1].append(token)
        previous = counts
    return [tokenizer_for(info).decode(run, skip_special_tokens=False) for run in runs]


def test_chat_learns_each_assistant_turn_and_its_end(smollm2: BaseModelInfo) -> None:
    example = chat(("user", "Hi"), ("assistant", "Hello."), ("user", "Again"), ("assistant", "Yes."))
    assert learnt(smollm2, tokenize_example(smollm2, example)) == ["Hello.<|im_end|>", "Yes.<|im_end|>"]


def test_chat_tokens_are_the_rendered_conversation(smollm2: BaseModelInfo) -> None:
    turns = [("system", "Short."), ("user", "Größe?"), ("assistant", "中 71 °C"), ("user", "ok"), ("assistant", "Bye")]
    tokenized = tokenize_example(smollm2, chat(*turns))
    rendered = render_chat(
        smollm2.chat_template, [{"role": r, "content": c} for r, c in turns], add_generation_prompt=False
    )
    assert tokenizer_for(smollm2).decode(tokenized.token_ids, skip_special_tokens=False) == rendered
    assert rendered.startswith("<|im_start|>system\nShort.<|im_end|>\n<|im_start|>user\n")


def test_training_context_equals_the_prompt_at_serving_time(smollm2: BaseModelInfo) -> None:
    tokenized = tokenize_example(smollm2, chat(("user", "How hot?"), ("assistant", "71 degrees.")))
    prompt = tokenize_prompt(smollm2, [{"role": "user", "content": "How hot?"}])
    assert tokenized.token_ids[: len(prompt)] == prompt
    assert tokenized.loss_mask[: len(prompt)] == [0] * len(prompt)
    assert tokenized.loss_mask[len(prompt)] == 1


def test_weight_zero_keeps_a_turn_in_context_without_learning_it(smollm2: BaseModelInfo) -> None:
    turns = [("user", "a"), ("assistant", "wrong", 0), ("user", "sure?"), ("assistant", "right", 1)]
    muted = tokenize_example(smollm2, chat(*turns))
    loud = tokenize_example(smollm2, chat(*[turn[:2] for turn in turns]))
    assert learnt(smollm2, muted) == ["right<|im_end|>"]
    assert learnt(smollm2, loud) == ["wrong<|im_end|>", "right<|im_end|>"]
    assert muted.token_ids == loud.token_ids


def test_a_last_user_turn_is_not_trained_on(smollm2: BaseModelInfo) -> None:
    with_tail = chat(("user", "a"), ("assistant", "b"), ("user", "never seen"))
    without = chat(("user", "a"), ("assistant", "b"))
    assert tokenize_example(smollm2, with_tail) == tokenize_example(smollm2, without)


def test_completion_learns_the_completion_and_the_end_token(smollm2: BaseModelInfo) -> None:
    tokenized = tokenize_example(smollm2, CompletionExample(prompt="Code: ", completion="4826"))
    assert learnt(smollm2, tokenized) == ["4826<|im_end|>"]
    assert tokenized.token_ids[-1] == smollm2.eos_token_ids[0]


def test_completion_without_prompt_skips_the_first_token(bytewise: BaseModelInfo) -> None:
    tokenized = tokenize_example(bytewise, CompletionExample(prompt="", completion="ab"))
    assert tokenized.loss_mask == [0, 1, 1]


def test_text_learns_all_but_the_first_token(bytewise: BaseModelInfo) -> None:
    tokenized = tokenize_example(bytewise, TextExample(text="abcd"))
    assert tokenized.loss_mask == [0, 1, 1, 1]
    assert tokenizer_for(bytewise).decode(tokenized.token_ids) == "abcd"


def test_text_of_one_token_has_nothing_to_learn(bytewise: BaseModelInfo) -> None:
    assert tokenize_example(bytewise, TextExample(text="a")).loss_mask == [0]


def test_template_less_model_uses_chatml(bytewise: BaseModelInfo) -> None:
    tokenized = tokenize_example(bytewise, chat(("user", "a"), ("assistant", "b")))
    assert learnt(bytewise, tokenized) == ["b<|im_end|>"]


def test_template_that_rewrites_earlier_turns_is_refused(bytewise: BaseModelInfo) -> None:
    info = bytewise.model_copy(update={"chat_template": "{{ messages|length }}{{ messages[-1].content }}"})
    with pytest.raises(ChatTemplateError, match="rewrites earlier turns"):
        tokenize_example(info, chat(("user", "a"), ("assistant", "b")))
