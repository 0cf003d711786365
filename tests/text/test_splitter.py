"""Text that comes bit by bit is cut as if it had come at once, and as early as possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonant.text.sentences import split_text
from sonant.text.splitter import Granularity, IncrementalSplitter


def spoken(granularity: Granularity, bits: list[str], max_chars: int = 300) -> list[str]:
    splitter, out = IncrementalSplitter(granularity, max_chars), []
    for bit in bits:
        splitter.push(bit)
        while (segment := splitter.take(eager=False)) is not None:
            out.append(segment)
    while (segment := splitter.flush()) is not None:
        out.append(segment)
    return out


ALPHABET = st.sampled_from(list("abcdefg 123 .!?,;:\n“”'\"—。！？，、你好世界…🙂"))


@given(st.lists(st.text(ALPHABET, max_size=30), max_size=20), st.integers(20, 80))
def test_no_letter_is_lost_however_it_comes(bits: list[str], limit: int) -> None:
    for granularity in ("auto", "none", "sentence", "clause"):
        joined = "".join(spoken(granularity, bits, limit))
        assert [c for c in joined if c.isalnum()] == [c for c in "".join(bits) if c.isalnum()]


@pytest.mark.parametrize("granularity", ["auto", "sentence", "clause"])
def test_what_cannot_be_spoken_is_left_out_and_holds_nothing_up(granularity: Granularity) -> None:
    assert spoken(granularity, ["-" * 100, " " * 100, "Hello there."], 40) == ["Hello there."]


@given(st.text(st.sampled_from(list("abc 12.,!?\n")), max_size=200))
def test_cuts_do_not_depend_on_how_the_text_was_dealt_out(text: str) -> None:
    for granularity in ("sentence", "clause"):
        assert spoken(granularity, list(text), 1000) == spoken(granularity, [text], 1000)


def test_a_quote_that_closes_after_its_sentence_was_taken_is_not_the_next_ones() -> None:
    text = "“你好。”他说。「真的？！」她问。"
    assert spoken("sentence", [text]) == ["“你好。”", "他说。", "「真的？！」", "她问。"]
    assert spoken("sentence", list(text)) == ["“你好。", "他说。", "「真的？", "她问。"]


@given(st.text(st.sampled_from(list("ab你好世 ，。！？”」\n")), max_size=100), st.integers(1, 5))
def test_what_is_said_does_not_depend_on_how_chinese_was_dealt_out(text: str, size: int) -> None:
    dealt = [text[i : i + size] for i in range(0, len(text), size)]
    for granularity in ("sentence", "clause"):
        parts = [[p.strip("，。！？”」") for p in spoken(granularity, bits, 1000)] for bits in (dealt, [text])]
        assert parts[0] == parts[1]


@pytest.mark.parametrize(
    ("granularity", "text", "segments"),
    [
        ("sentence", "Dr. Lee paid 3.50, at 5 p.m. sharp. Good!", ["Dr. Lee paid 3.50, at 5 p.m. sharp.", "Good!"]),
        ("clause", "It costs 1,000, or 2,000; who knows?", ["It costs 1,000,", "or 2,000;", "who knows?"]),
        ("none", "One. Two, three.", ["One. Two, three."]),
        ("sentence", "你好。世界！", ["你好。", "世界！"]),
        ("sentence", "„Halt.“ Er ging. »Nein.« Sie blieb.", ["„Halt.“", "Er ging.", "»Nein.«", "Sie blieb."]),
        ("sentence", "**Note this.** Then *this.* And this.", ["**Note this.**", "Then *this.*", "And this."]),
        ("sentence", "It works.[12] So it does.² It ends.", ["It works.[12]", "So it does.²", "It ends."]),
        ("sentence", "यह एक वाक्य है। यह दूसरा है।", ["यह एक वाक्य है।", "यह दूसरा है।"]),
        ("clause", "هل أنت بخير؟ نعم، أنا بخير.", ["هل أنت بخير؟", "نعم،", "أنا بخير."]),
        ("sentence", '"Wait..." he said. ... ', ['"Wait..."', "he said."]),
    ],
)
def test_cuts_are_where_a_reader_would_pause(granularity: Granularity, text: str, segments: list[str]) -> None:
    assert spoken(granularity, list(text)) == segments


@pytest.mark.parametrize(
    "text",
    [
        "She has a Ph.D. in physics and left the U.S.A. in May.",
        "Sgt. Pepper met Lt. Col. Fox on Sept. 5 near Mt. Everest.",
        "Smith et al. asked Acme Inc. for it.",
        "1. Buy milk.",
        "Am 3. Mai kam Hr. Maier, bzw. seine Frau, für ca. eine Stunde.",
        "Der 2. Weltkrieg und das 19. Jahrhundert.",
        "El Sr. García y la Sra. López viven en EE. UU. desde mayo.",
        "А. С. Пушкин родился в 1799 г. в Москве.",
    ],
)
def test_an_abbreviation_or_an_ordinal_is_not_spoken_apart(text: str) -> None:
    assert spoken("sentence", list(text)) == [text]


@pytest.mark.parametrize(
    "sentences",
    [["No, I can't.", "You must."], ["It's Bob's.", "Good."], ["Call me at 5.", "Then go."], ["못 해.", "네."]],
)
def test_what_only_looks_like_an_abbreviation_ends_a_sentence(sentences: list[str]) -> None:
    assert spoken("sentence", list(" ".join(sentences))) == sentences


def test_a_waiting_listener_gets_the_clauses_and_others_the_sentence() -> None:
    eager, patient = IncrementalSplitter("auto", 300), IncrementalSplitter("auto", 300)
    for splitter in (eager, patient):
        splitter.push("Well, to be honest with you, I")
    assert patient.take(eager=False) is None
    assert eager.take(eager=True) == "Well, to be honest with you,"
    for splitter in (eager, patient):
        splitter.push(" do not, in fact, know. And")
    assert patient.take(eager=False) == "Well, to be honest with you, I do not, in fact, know."
    assert eager.take(eager=True) == "I do not, in fact, know."  # whole, as there is no reason to cut it further
    assert patient.take(eager=True) is None


def test_a_word_and_a_comma_are_not_worth_starting_for() -> None:
    splitter = IncrementalSplitter("auto", 300)
    splitter.push("Well, ")
    assert splitter.take(eager=True) is None


def test_a_mark_at_the_end_may_still_be_part_of_a_number() -> None:
    splitter = IncrementalSplitter("clause", 300)
    splitter.push("Pi is 3.")
    assert splitter.take(eager=True) is None
    splitter.push("14, more or less. ")
    assert splitter.take(eager=True) == "Pi is 3.14,"


def test_text_without_a_pause_is_cut_all_the_same() -> None:
    assert all(len(p) <= 40 for p in spoken("sentence", ["word " * 100], 40))


def test_a_sentence_that_is_too_long_is_cut_at_the_last_clause_that_fits() -> None:
    clause = "to be honest with you I do not know what to say about this, "
    text = f"Well, {clause * 6}sorry."
    assert spoken("sentence", list(text)) == spoken("sentence", [text]) == split_text(text, 300)
    assert [len(part) for part in split_text(text, 300)] == [245, 126]
