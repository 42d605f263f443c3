"""Windows, their masks, and what is left out."""

from app.text.tokenize import TokenizedExample
from workers.training.dataset import Window, build_dataset, count_tokens, flatten, split_windows, windows_sha256


def test_a_long_example_is_split_without_overlap_and_each_window_keeps_its_mask() -> None:
    example = TokenizedExample([1, 2, 3, 4, 5, 6, 7], [0, 0, 1, 1, 1, 0, 1])
    assert split_windows(example, 3) == [
        Window((1, 2, 3), (0, 0, 1)),
        Window((4, 5, 6), (0, 1, 0)),
    ], "the last window holds only its first token, which nothing predicts"


def test_windows_without_a_counted_position_are_dropped() -> None:
    example = TokenizedExample([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 1, 1])
    assert split_windows(example, 3) == [Window((4, 5, 6), (0, 1, 1))]


def test_examples_with_nothing_to_learn_are_dropped_and_counted() -> None:
    learn = TokenizedExample([1, 2], [0, 1])
    nothing = TokenizedExample([1, 2], [0, 0])
    dataset = build_dataset([nothing, learn, TokenizedExample([9], [0])], 8)
    assert dataset.examples == ((Window((1, 2), (0, 1)),),)
    assert dataset.dropped_examples == 2
    assert count_tokens(flatten(dataset.examples)) == 2


def test_the_digest_tells_datasets_apart() -> None:
    a = build_dataset([TokenizedExample([1, 2, 3], [0, 1, 1])], 8)
    b = build_dataset([TokenizedExample([1, 2, 3], [0, 0, 1])], 8)
    c = build_dataset([TokenizedExample([1, 2], [0, 1]), TokenizedExample([3, 4], [0, 1])], 8)
    d = build_dataset([TokenizedExample([1, 2, 3, 4], [0, 1, 0, 1])], 8)
    assert len({windows_sha256(flatten(x.examples)) for x in (a, b, c, d)}) == 4
