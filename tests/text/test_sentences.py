"""Text is cut at sentence ends, without losing a word or leaving a part with nothing to say."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonant.text.sentences import split_text


def squeezed(text: str) -> str:
    return "".join(text.split())


@given(
    st.text(alphabet=st.sampled_from(list("abcdefg 123 .!?,;:\n“”'\"—。！？，、你好世界…🙂")), max_size=600),
    st.integers(20, 120),
)
def test_nothing_is_lost_and_every_part_has_something_to_say(text: str, limit: int) -> None:
    parts = split_text(text, limit)
    assert squeezed("".join(parts)) == squeezed(text)
    if len(parts) > 1:
        assert all(any(c.isalnum() for c in part) for part in parts)


@given(st.lists(st.integers(3, 60), min_size=1, max_size=30))
def test_plain_sentences_are_cut_only_at_their_ends(lengths: list[int]) -> None:
    sentences = ["a" * n + "." for n in lengths]
    parts = split_text(" ".join(sentences), 70)
    assert all(part.endswith(".") and len(part) <= 70 for part in parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Mr. Smith paid 3.50 to Dr. Jones. He left.", ["Mr. Smith paid 3.50 to Dr. Jones.", "He left."]),
        ("J. R. Smith came at 5 p.m. on Monday. Good.", ["J. R. Smith came at 5 p.m. on Monday.", "Good."]),
        ("今天天气很好。我们去公园吧！你来吗？来的话请带上水和面包，还有苹果。", None),
        ('He said "Stop." Then he left the room at once.', ['He said "Stop."', "Then he left the room at once."]),
        ("Line one\nLine two is a bit longer than one", ["Line one", "Line two is a bit longer than one"]),
    ],
)
def test_cuts_are_where_a_reader_would_pause(text: str, parts: list[str] | None) -> None:
    got = split_text(text, 38 if parts else 14)
    if parts:
        assert got == parts
    else:
        assert all(p[-1] in "。！？，" for p in got) and len(got) > 2


def test_a_text_of_broken_lines_is_cut_at_its_sentences() -> None:
    """Books have such line breaks, made for a screen or for paper."""
    text = (
        "However little known the feelings or views of such a\nman may be. This truth is well\n"
        "fixed in the minds of the\nsurrounding families.\n\n"
        "“My dear,” said his lady to him one day,\n“have you heard it?”"
    )
    assert split_text(text, 110) == [
        "However little known the feelings or views of such a\nman may be.",
        "This truth is well\nfixed in the minds of the\nsurrounding families.",
        "“My dear,” said his lady to him one day,\n“have you heard it?”",
    ]


def test_lines_without_marks_are_not_broken() -> None:
    assert split_text("some apples, red\nripe pears, green\nplums, all of them\n", 20) == [
        "some apples, red",
        "ripe pears, green",
        "plums, all of them",
    ]


def test_the_number_of_a_list_stays_with_what_it_counts() -> None:
    assert split_text("1. Buy milk\n2. Walk the dog\n  3. Sleep", 18) == ["1. Buy milk", "2. Walk the dog", "3. Sleep"]


def test_a_sentence_without_any_pause_is_cut_at_a_space_and_a_word_without_one_anywhere() -> None:
    words = "word " * 50
    assert all(len(p) <= 40 and not p.startswith("ord") for p in split_text(words, 40))
    assert [len(p) for p in split_text("x" * 100, 40)] == [40, 40, 20]


@pytest.mark.parametrize("word", ["word ", "词"])
def test_a_tag_is_never_cut(word: str) -> None:
    """A tag must stay whole wherever it stands, since half of [music start] would be read aloud."""
    for before in range(20):
        text = "x" * before + f" {8 * word}[music start] {8 * word}[SPEAKER1] {8 * word}[music end]"
        parts = split_text(text, 40)
        assert len(parts) > 1 or len(text) <= 40
        assert all(len(p) <= 40 and p.count("[") == p.count("]") for p in parts)
    assert [len(p) for p in split_text("[" + "x" * 99, 40)] == [40, 40, 20]


def test_short_text_is_left_whole() -> None:
    assert split_text("  One. Two. Three.  ", 300) == ["One. Two. Three."]


@pytest.mark.parametrize("unit", ["J. ", "Mr. ", "word ", "x", "! ", ", ", "[", "。", ".", "!?"])
def test_time_grows_with_length_only(unit: str) -> None:
    """The longer text would need minutes if each mark caused another search, or exceed the limit of recursion."""

    def seconds(length: int) -> float:
        began = time.process_time()
        split_text(f"a {unit * (length // len(unit))}x", 100)
        return time.process_time() - began

    assert seconds(120_000) < 20 * seconds(12_000) + 0.2
