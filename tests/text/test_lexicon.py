from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from sonant.errors import CheckpointError
from sonant.text.lexicon import Lexicon, alphabet

WORDS = {"cat": "kˈæt", "bus": "bˈʌs", "dog": "dˈɔɡ", "a": "ɐ", "i": "ˌI", "don't": "dˈOnt", "sits": "sˈɪts"}


@pytest.fixture
def lexicon() -> Lexicon:
    return Lexicon(WORDS)


def wide(sounds: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if c.isascii() else c for c in sounds)


@pytest.mark.parametrize(
    ("text", "sounds"),
    [
        ("Cat, dog!", f"{wide('kˈæt')}, {wide('dˈɔɡ')}!"),
        ("don't", wide("dˈOnt")),
        ("cat-dog", f"{wide('kˈæt')}-{wide('dˈɔɡ')}"),
        ("The cat's bus's dog's", f"The {wide('kˈæts')} {wide('bˈʌsᵻz')} {wide('dˈɔɡz')}"),
        ("zebra", "zebra"),
        ("", ""),
    ],
)
def test_known_words_sound_and_others_are_spelt(lexicon: Lexicon, text: str, sounds: str) -> None:
    assert lexicon.pronounce(text) == sounds


def test_a_letter_is_not_an_article(lexicon: Lexicon) -> None:
    article = wide("ɐ")
    assert lexicon.pronounce("A cat") == f"{article} {wide('kˈæt')}"
    assert lexicon.pronounce("a cat I") == f"{article} {wide('kˈæt')} {wide('ˌI')}"
    assert lexicon.pronounce("U S A.") == f"{wide('jˈu')} {wide('ˈɛs')} {wide('ˈA')}."
    assert lexicon.pronounce("A B C") == f"{wide('ˈA')} {wide('bˈi')} {wide('sˈi')}"
    assert lexicon.pronounce("x", spelt=lambda word: True) == "x"


def test_every_letter_has_a_name_of_known_sounds() -> None:
    names = [Lexicon({}).pronounce(letter) for letter in "bcdefghjklmnopqrstuvwxyz"]
    assert len(set(names)) == len(names)
    assert set("".join(names)) <= set(alphabet())


def test_words_can_be_spelt_on_purpose(lexicon: Lexicon) -> None:
    assert lexicon.pronounce("cat dog", spelt=lambda word: word == "cat") == f"cat {wide('dˈɔɡ')}"


def test_sounds_share_no_letter_with_spelling() -> None:
    assert len(set(alphabet())) == len(alphabet())
    assert not any(c.isascii() for c in alphabet())


def test_what_is_written_is_read(lexicon: Lexicon, tmp_path: Path) -> None:
    lexicon.write(tmp_path / "words.zz")
    assert Lexicon.read(tmp_path / "words.zz").sounds == WORDS


@pytest.mark.parametrize("content", [b"", b"not compressed", zlib.compress(b"no tab\n"), zlib.compress(b"\xff\xfe\n")])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.zz"
    path.write_bytes(content)
    if content == b"":
        path.unlink()
    with pytest.raises(CheckpointError, match=r"broken\.zz"):
        Lexicon.read(path)
