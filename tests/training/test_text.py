"""The sentence maker keeps what people type and drops what only dictionaries print."""

from __future__ import annotations

import pytest

from training import phrases, text


@pytest.mark.parametrize(
    "sentence",
    [
        "Hi.",
        "Yes, please.",
        "It costs $9.99.",
        "My flight leaves at 7:30 p.m. on Friday.",
        '"Nobody told me," said Anna.',
        "Did J. K. Rowling write it?",
    ],
)
def test_what_a_person_types_is_plain(sentence: str) -> None:
    assert text.is_plain(sentence)


@pytest.mark.parametrize(
    "debris",
    [
        "",
        "Hi",
        "of or relating to appetite.",
        "See {Coke}, n.",
        "A [Obs.] word.",
        "x" * 300 + ".",
        'He said "hello.',
        "The year 1234567890123 and 99999999.",
        "Qu'est-ce que c'est là?",
        "Cash,; and carry.",
        "A: The impossible dream.",
        "Antidisestablishmentarianistically so.",
    ],
)
def test_debris_is_not(debris: str) -> None:
    assert not text.is_plain(debris)


def test_wordnet_gives_examples_and_definitions_as_sentences() -> None:
    entry = 'appetite\n    n 1: a feeling of craving something; "an appetite for life";\n         "he lost\n'
    entry += '         his appetite" [syn: {appetite}, {appetency}]\n    v 2: to want food very much\n'
    assert list(text.wordnet(entry)) == [
        ("example", "An appetite for life."),
        ("example", "He lost his appetite."),
        ("definition", "An appetite is a feeling of craving something."),
        ("definition", "To appetite is to to want food very much."),
    ]


def test_fortunes_lose_their_attribution() -> None:
    cookie = "A friend is a present\nyou give yourself.  It is so.\n\t\t-- R. L. Stevenson\n%\n"
    assert [s for _, s in text.fortunes(cookie) if s] == [
        "A friend is a present you give yourself.",
        "It is so.",
    ]


def test_one_of_each_wording_and_no_more_than_asked_for() -> None:
    found = [
        ("short", "Hello."),
        ("short", "hello!"),
        ("short", "Hello!"),
        ("short", "Bye."),
        ("short", "Why?"),
    ]
    kept = text.collect(found, {"short": 2, "passage": 0})
    assert len(kept) == 2
    assert len({text.key(t) for _, t in kept}) == 2


def test_no_sentence_is_both_alone_and_in_a_passage() -> None:
    found = [("example", f"This is the sentence with number {i}.") for i in range(40)]
    kept = text.collect(found, {"example": 40, "passage": 5})
    passages = [t for kind, t in kept if kind == "passage"]
    alone = [t for kind, t in kept if kind == "example"]
    assert len(passages) == 5
    assert not any(t in p for t in alone for p in passages)


def test_the_split_is_the_same_every_time_and_holds_every_kind() -> None:
    kept = [(kind, f"{kind} {i}.") for i in range(50) for kind in ("example", "short")]
    first, second = (text.split(list(kept), 10, 20) for _ in range(2))
    assert first == second
    assert [sum(s.split == name for s in first) for name in ("eval", "random", "train")] == [10, 20, 70]
    assert {s.kind for s in first if s.split == "eval"} == {"example", "short"}


def test_generated_sentences_are_plain_and_varied() -> None:
    limits = {"numbers": 200, "names": 200, "short": 100}
    made = list(phrases.generate(limits))
    assert made == list(phrases.generate(limits))
    for kind, wanted in limits.items():
        plain = {t for k, t in made if k == kind and text.is_plain(t)}
        assert len(plain) >= wanted, kind
    assert not any("{" in t for _, t in made)


def test_the_commonest_words_are_also_said_alone_and_only_in_training() -> None:
    said = ["A cat sat on a cat's mat.", "Yes.", "The cat and the dog.", "The dog."]
    given = [
        text.Sentence(t, "short", split) for t, split in zip(said, ("train", "random", "train", "eval"), strict=True)
    ]
    every = text.with_words(given, 3)
    alone = [s for s in every if s.kind == "word"]
    assert set(given) < set(every) and all(s.split == "train" for s in alone)
    assert len(alone) == 3 and {"The", "Cat"} <= {s.text[:-1] for s in alone}
    assert "Yes." not in [s.text for s in text.with_words(given, 100) if s.kind == "word"]
