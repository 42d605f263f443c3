"""Turns a job's JSONL bytes into token ids, through the code the service validated and previewed them with."""

import io
from collections.abc import Generator

from app.contracts.base_models import BaseModelInfo
from app.text.examples import read_examples
from app.text.tokenize import TokenizedExample, tokenize_example

EXAMPLES_PER_SLICE = 64


def tokenized(info: BaseModelInfo, jsonl: bytes) -> Generator[float, None, list[TokenizedExample]]:
    """Return the examples, yielding (a pause of 0) now and then so that other work goes on.

    Raises ExampleError or ChatTemplateError.
    """
    examples: list[TokenizedExample] = []
    for number, example in enumerate(read_examples(io.BytesIO(jsonl)), start=1):
        examples.append(tokenize_example(info, example))
        if number % EXAMPLES_PER_SLICE == 0:
            yield 0.0
    return examples
