"""Every malformed line is refused with its line, its field and what was expected; every good form is read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.examples import (
    MAX_REPORTED_ERRORS,
    ChatExample,
    CompletionExample,
    ExampleError,
    TextExample,
    parse_example,
    read_examples,
    validate_lines,
)

GOOD = b'{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}'


def problems(line: bytes) -> list[tuple[str, str]]:
    """Return what is wrong with a line that must be refused."""
    with pytest.raises(ExampleError) as caught:
        parse_example(line)
    return caught.value.problems


def test_reads_the_three_forms() -> None:
    assert isinstance(parse_example(GOOD), ChatExample)
    assert parse_example(b'{"prompt": "", "completion": "b"}') == CompletionExample(prompt="", completion="b")
    assert parse_example('{"text": "größer"}'.encode()) == TextExample(text="größer")


@pytest.mark.parametrize(
    ("line", "field", "expected"),
    [
        (b"{", "", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        (b'{"text": NaN}', "", "not JSON: NaN is not JSON"),
        (b'{"text": "\xff"}', "", "not UTF-8 at byte 10"),
        (b"[1]", "", "expected a JSON object, got list"),
        (b'"text"', "", "expected a JSON object, got str"),
        (b'{"words": "a"}', "", "expected a field messages, text, or prompt and completion"),
        (b'{"text": ""}', "text", "String should have at least 1 character"),
        (b'{"text": 3}', "text", "Input should be a valid string"),
        (b'{"text": "a", "label": 1}', "label", "Extra inputs are not permitted"),
        (b'{"prompt": "a"}', "completion", "Field required"),
        (b'{"completion": "a"}', "prompt", "Field required"),
        (b'{"prompt": "a", "completion": ""}', "completion", "String should have at least 1 character"),
        (b'{"messages": []}', "messages", "List should have at least 1 item after validation, not 0"),
        (
            b'{"messages": [{"role": "user", "content": "hi"}]}',
            "",
            "expected at least one assistant turn",
        ),
        (
            b'{"messages": [{"role": "assistant", "content": "hi"}]}',
            "",
            "the first turn must be a system or user turn, for the assistant to answer",
        ),
        (
            b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "hi", "weight": 0}]}',
            "",
            "every assistant turn has weight 0, so nothing would be learnt",
        ),
        (
            b'{"messages": [{"role": "robot", "content": "hi"}]}',
            "messages[0].role",
            "Input should be 'system', 'user' or 'assistant'",
        ),
        (b'{"messages": [{"role": "user"}]}', "messages[0].content", "Field required"),
        (
            b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]}',
            "messages[1].content",
            "String should have at least 1 character",
        ),
        (
            b'{"messages": [{"role": "user", "content": "a", "weight": 1}, {"role": "assistant", "content": "b"}]}',
            "messages[0]",
            "weight is allowed on assistant turns only",
        ),
        (
            b'{"messages": [{"role": "assistant", "content": "b", "weight": 2}]}',
            "messages[0].weight",
            "Input should be 0 or 1",
        ),
        (b'{"text": "\\ud800"}', "", "contains a lone surrogate, which is not text"),
        (b'{"text": "a", "\\ud800": 1}', "", "contains a lone surrogate, which is not text"),
    ],
)
def test_refuses_with_field_and_expectation(line: bytes, field: str, expected: str) -> None:
    assert (field, expected) in problems(line)


def test_deeply_nested_json_is_an_error_of_the_line() -> None:
    assert problems(b"[" * 100_000)[0][1].startswith("not JSON")


def test_overlong_line_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.text.examples.MAX_LINE_BYTES", 10)
    assert problems(b'{"text": "abc"}') == [("", "longer than 10 bytes")]


def test_error_names_its_line_and_blank_lines_count_as_lines_but_not_as_examples() -> None:
    lines = [GOOD, b"", b"  \n", GOOD, GOOD, GOOD, b'{"text": ']
    count, errors = validate_lines(lines)
    assert count == 5
    assert [str(error) for error in errors] == ["line 7: not JSON: Expecting value at column 10"]


def test_error_text_holds_line_field_and_message() -> None:
    _, errors = validate_lines([GOOD, b'{"text": ""}'])
    assert str(errors[0]) == "line 2, text: String should have at least 1 character"


def test_reports_at_most_twenty_errors_and_stops_reading() -> None:
    seen = 0

    def lines():
        nonlocal seen
        for _ in range(1000):
            seen += 1
            yield b'{"messages": [{"role": "x"}]}'

    _, errors = validate_lines(lines())
    assert len(errors) == MAX_REPORTED_ERRORS == 20
    assert seen == 10


def test_read_examples_passes_over_blank_lines() -> None:
    assert [type(e) for e in read_examples([b"\n", GOOD, b" ", b'{"text": "a"}'])] == [ChatExample, TextExample]


FIELDS = st.sampled_from(["messages", "text", "prompt", "role", "content"]) | st.text(max_size=3)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3),
    max_leaves=8,
)


@given(JSON_VALUES)
def test_any_json_is_an_example_or_counted_errors(value: object) -> None:
    count, errors = validate_lines([json.dumps(value).encode()])
    assert count == 1
    assert all(error.line == 1 and error.message for error in errors)
