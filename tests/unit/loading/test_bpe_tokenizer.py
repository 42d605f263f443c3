"""Byte-level BPE from vocab.json and merges.txt: the ids of transformers' GPT-2, and defects refused by name."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from transformers import GPT2Tokenizer

from workers.loading.architectures.base import LoadingError
from workers.loading.bpe_tokenizer import read_bpe
from workers.loading.tokenizer_files import find_tokenizer

TEXT = [
    "the cat and the other cat can't sit, said 12 of them",
    "größe über straße 日本語",
    "def f(x):\n    return x",
] * 3


def write_files(directory: Path, special: list[str]) -> Path:
    """Train on a few lines and save the two files."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(TEXT, vocab_size=340, min_frequency=2, special_tokens=special, show_progress=False)
    tokenizer.save_model(str(directory))
    return directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("bpe"), ["<|endoftext|>"])


@pytest.fixture(scope="module")
def ours(directory: Path) -> Tokenizer:
    return Tokenizer.from_str(read_bpe(directory, {}))


@pytest.fixture(scope="module")
def reference(directory: Path) -> GPT2Tokenizer:
    return GPT2Tokenizer.from_pretrained(str(directory))


texts = st.text() | st.lists(st.sampled_from([*["", "\n\t'"], "the", " cat", "can't", "12", "ß", "<|endoftext|>"])).map(
    " ".join
)


@settings(max_examples=150, deadline=None)
@given(text=texts)
def test_the_ids_are_gpt2s_and_the_text_comes_back(ours: Tokenizer, reference: GPT2Tokenizer, text: str) -> None:
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == reference.encode(text, add_special_tokens=False)
    assert ours.decode(ids, skip_special_tokens=False) == text


def test_merges_are_used_and_the_end_of_text_is_special(ours: Tokenizer) -> None:
    assert len(ours.encode("the cat").ids) == 2
    ids = ours.encode("a<|endoftext|>").ids
    assert ids[-1] == 0
    assert ours.decode(ids) == "a"


def test_added_tokens_get_the_ids_that_are_listed(tmp_path: Path) -> None:
    write_files(tmp_path, [])
    end = len(json.loads((tmp_path / "vocab.json").read_text()))
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "added_tokens_decoder": {str(end): {"content": "<end>", "special": True}, str(end + 2): {"content": "<c>"}},
        "eos_token": "<end>",
    }
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<b>": end + 1}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "<pad>"}}))
    tokenizer = Tokenizer.from_str(read_bpe(tmp_path, config))
    ids = tokenizer.encode("<end><b><c><pad>").ids
    assert ids == [end, end + 1, end + 2, end + 3]
    assert tokenizer.decode(ids) == "<b><c>"
    (tmp_path / "added_tokens.json").unlink()
    with pytest.raises(LoadingError, match=f"'<d>' cannot have the id {end + 9}"):
        read_bpe(tmp_path, {"added_tokens_decoder": {str(end): {"content": "<c>"}, str(end + 9): {"content": "<d>"}}})


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("merges.txt", "#version: 0.2\n\nt h e\n", "line 3: expected two tokens"),
        ("merges.txt", "t zz\n", "line 1: 'zz' is not in the vocabulary"),
        ("vocab.json", "[]", "vocab.json: expected a JSON object"),
        ("vocab.json", '{"a": "b"}', "an object of tokens and their ids"),
        ("vocab.json", '{"a": 1, "b": 1}', "two tokens have the same id"),
        ("vocab.json", '{"a": 1}', "255 of 256 bytes have no token, the first is '!'"),
        ("vocab.json", "{", "vocab.json: not readable JSON"),
        ("merges.txt", None, "merges.txt: not readable"),
    ],
)
def test_defects_are_named(tmp_path: Path, file: str, content: str | None, words: str) -> None:
    write_files(tmp_path, [])
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(LoadingError, match=words):
        read_bpe(tmp_path, {})


def test_a_class_that_cuts_text_otherwise_is_refused(directory: Path) -> None:
    with pytest.raises(LoadingError, match=r"tokenizer_class 'Qwen2Tokenizer' needs a tokenizer\.json"):
        read_bpe(directory, {"tokenizer_class": "Qwen2Tokenizer"})


def test_a_directory_is_searched_for_either_form(directory: Path, tmp_path: Path) -> None:
    assert find_tokenizer(directory, {}) == read_bpe(directory, {})
    assert find_tokenizer(tmp_path, {}) is None
    whole = read_bpe(directory, {})
    (tmp_path / "tokenizer.json").write_text(whole)
    assert find_tokenizer(tmp_path, {}) == whole
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(LoadingError, match=r"tokenizer\.json: not a tokenizer"):
        find_tokenizer(tmp_path, {})
