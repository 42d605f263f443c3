"""The byte-level tokenizer: token i is byte i, any text comes back, ChatML's marks are special."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from app.text.tokenizer import IncrementalDecoder, TextTokenizer
from workers.loading.byte_tokenizer import END_ID, VOCABULARY, byte_tokenizer_json

JSON = byte_tokenizer_json()
TOKENIZER = Tokenizer.from_str(JSON)


def test_the_vocabulary() -> None:
    assert TOKENIZER.get_vocab_size() == VOCABULARY == 258
    assert TOKENIZER.encode("<|im_start|>a<|im_end|>").ids == [256, 97, 257]
    assert TOKENIZER.token_to_id("<|im_end|>") == END_ID
    assert TOKENIZER.decode([256, 97, 257]) == "a"
    assert len(set(TOKENIZER.get_vocab().values())) == VOCABULARY


@given(text=st.text())
def test_any_text_is_its_bytes_and_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text).ids
    assert ids == list(text.encode())
    assert TOKENIZER.decode(ids) == text


@given(text=st.text(max_size=20))
def test_a_stream_of_bytes_gives_whole_characters(text: str) -> None:
    decoder = IncrementalDecoder(TextTokenizer(JSON, None, [END_ID]))
    assert "".join(decoder.push(byte) for byte in text.encode()) == text
