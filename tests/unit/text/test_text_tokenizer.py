"""Decoding one token at a time gives the same text as decoding all, and never half a character."""

from hypothesis import given
from hypothesis import strategies as st

from app.contracts.base_models import BaseModelInfo
from app.text.tokenizer import IncrementalDecoder, tokenizer_for


def pieces(info: BaseModelInfo, text: str) -> list[str]:
    """Return what each token of `text` adds."""
    tokenizer = tokenizer_for(info)
    decoder = IncrementalDecoder(tokenizer)
    return [decoder.push(token) for token in tokenizer.encode(text)]


def test_a_character_of_many_tokens_comes_out_whole(bytewise: BaseModelInfo) -> None:
    assert pieces(bytewise, "a€🍵z") == ["a", "", "", "€", "", "", "", "🍵", "z"]


def test_emoji_of_many_tokens_comes_out_whole(smollm2: BaseModelInfo) -> None:
    parts = pieces(smollm2, "Tee 🍵!")
    assert "".join(parts) == "Tee 🍵!"
    assert not any("\N{REPLACEMENT CHARACTER}" in part for part in parts)
    assert "" in parts


def test_leading_space_of_the_first_token_stays(smollm2: BaseModelInfo) -> None:
    assert "".join(pieces(smollm2, " lead and trail ")) == " lead and trail "


def test_special_tokens_are_recognised_in_text_and_left_out_of_output(smollm2: BaseModelInfo) -> None:
    tokenizer = tokenizer_for(smollm2)
    assert tokenizer.encode("<|im_end|>") == smollm2.eos_token_ids
    assert pieces(smollm2, "ab<|im_end|>") == ["ab", ""]
    assert tokenizer.token(smollm2.eos_token_ids[0]) == "<|im_end|>"


def test_digits_are_single_tokens(smollm2: BaseModelInfo) -> None:
    tokenizer = tokenizer_for(smollm2)
    assert [tokenizer.token(token) for token in tokenizer.encode("4826")] == ["4", "8", "2", "6"]


def test_encoding_adds_nothing(smollm2: BaseModelInfo) -> None:
    assert tokenizer_for(smollm2).encode("") == []


def test_any_text_survives_both_ways(bytewise: BaseModelInfo) -> None:
    tokenizer = tokenizer_for(bytewise)

    @given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\N{REPLACEMENT CHARACTER}")))
    def survives(text: str) -> None:
        tokens = tokenizer.encode(text)
        decoder = IncrementalDecoder(tokenizer)
        assert tokenizer.decode(tokens, skip_special_tokens=False) == text
        assert "".join(decoder.push(token) for token in tokens) == text

    survives()


def test_the_same_model_shares_one_tokenizer(smollm2: BaseModelInfo) -> None:
    assert tokenizer_for(smollm2) is tokenizer_for(smollm2.model_copy())
