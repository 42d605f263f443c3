"""Stop strings are found wherever the text was cut, and never shown."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from workers.inference.stop_strings import StopFilter

LETTERS = "ab\n"


def feed(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    """Return what is shown of the pieces and whether a stop string ended them."""
    stop_filter, shown = StopFilter(stops), ""
    for piece in pieces:
        text, stopped = stop_filter.push(piece)
        shown += text
        if stopped:
            return shown, True
    return shown + stop_filter.flush(), False


@given(
    text=st.text(LETTERS, max_size=30),
    stops=st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=10),
)
def test_any_split_shows_the_same_as_one_letter_at_a_time(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    shown, stopped = feed(pieces, stops)
    assert (shown, stopped) == feed(list(text), stops)
    assert stopped == any(stop in text for stop in stops)
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)
    if not stopped:
        assert shown == text


def test_held_back_text_is_released_when_it_turns_out_harmless() -> None:
    stop_filter = StopFilter(["END"])
    assert stop_filter.push("the E") == ("the ", False)
    assert stop_filter.push("N") == ("", False)
    assert stop_filter.push("T") == ("ENT", False)
    assert stop_filter.push(" EN") == (" ", False)
    assert stop_filter.flush() == "EN"


def test_text_before_a_stop_string_that_crosses_pieces_is_shown() -> None:
    stop_filter = StopFilter(["\nUser:"])
    assert stop_filter.push("Hi.\nUs") == ("Hi.", False)
    assert stop_filter.push("er: more") == ("", True)


def test_the_stop_string_that_completes_first_wins() -> None:
    assert StopFilter(["abcd", "bc"]).push("xabcd") == ("xa", True)
    assert StopFilter(["bc", "abc"]).push("xabcd") == ("x", True)
