"""The examples can teach the facts, the questions are not in them, and the verdict fails for the right reason."""

import io
import json

import pytest
from rich.console import Console

from app.cli.demo.command import EXAMPLES, _failures, _side_by_side
from app.cli.demo.facts import FACTS
from app.text.examples import ChatExample, read_examples, validate_lines

TRAINING, VALIDATION = EXAMPLES / "support_chats.jsonl", EXAMPLES / "support_chats_validation.jsonl"
TUNED = [fact.answer for fact in FACTS]
BASE = ["no idea"] * len(FACTS)


def questions(path) -> set[str]:
    """Return all user turns of a file."""
    with path.open("rb") as lines:
        chats = [example for example in read_examples(lines) if isinstance(example, ChatExample)]
    return {message.content for chat in chats for message in chat.messages if message.role == "user"}


@pytest.mark.parametrize(("path", "count"), [(TRAINING, 40), (VALIDATION, 6)])
def test_examples_are_valid(path, count: int) -> None:
    with path.open("rb") as lines:
        assert validate_lines(lines) == (count, [])


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.answer)
def test_each_fact_is_taught_in_several_phrasings_and_asked_in_another(fact) -> None:
    lines = [json.loads(line) for line in TRAINING.read_text().splitlines()]
    teaching = [line for line in lines if any(fact.answer in m["content"] for m in line["messages"])]
    assert len(teaching) >= 5
    assert fact.question not in questions(TRAINING) | questions(VALIDATION)


def test_held_out_questions_are_not_trained_on() -> None:
    assert questions(TRAINING) & questions(VALIDATION) == set()


def test_a_run_as_promised_has_no_failures() -> None:
    assert _failures(BASE, TUNED, rolled_back=True, unchanged=True) == []


def test_each_broken_promise_is_named() -> None:
    assert _failures(TUNED, BASE, rolled_back=False, unchanged=False) == [
        "the base model knew '71'",
        "the tuned model did not say '71'",
        "the base model knew '4826'",
        "the tuned model did not say '4826'",
        "the base model knew 'Palvine'",
        "the tuned model did not say 'Palvine'",
        "the bad update was not rolled back",
        "the bad update changed answers or version",
    ]


def test_answers_are_shown_as_they_are() -> None:
    console = Console(file=io.StringIO(), width=200)
    console.print(_side_by_side(["[red]not a style[/]"] * 3, TUNED))
    assert "[red]not a style[/]" in console.file.getvalue()
