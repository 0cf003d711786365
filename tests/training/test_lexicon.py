from __future__ import annotations

from pathlib import Path

import pytest
from training.lexicon import NAMES, collect, read_alone, read_in_sentences, read_names, with_names, without_rules

from sonant.text.lexicon import Lexicon
from training import lexicon


def row(text: str, phonemes: str, voice: str = "af_heart", split: str = "train") -> dict[str, str]:
    return {"text": text, "phonemes": phonemes, "voice": voice, "split": split}


def test_words_are_kept_as_they_are_mostly_read() -> None:
    rows = [
        row("I read it.", "ˌI ɹˈid ɪt."),
        row("You read it!", "ju ɹˈɛd ɪt!"),
        row("They read.", "ðA ɹˈid."),
        row("We read", "wiː ɹɛd", "bf_emma"),  # not American
        row("Kuo-lao read", "kjˈuO lˈW ɹˈɛd"),  # words and sounds do not pair
        row("Nobody", "nˈObədi", split="eval"),  # kept out of training
        row("Xq read", "Q ɹˈɛd"),  # Q is no American sound
    ]
    assert collect(read_in_sentences(rows)) == {
        "i": "ˌI", "read": "ɹˈid", "it": "ɪt", "you": "ju", "they": "ðA",
    }  # fmt: skip


def test_only_unknown_words_are_read_alone() -> None:
    asked: list[str] = []

    def reader(word: str) -> str:
        asked.append(word)
        return "kˈæt"

    assert list(read_alone(["Cat", "dog", "x", "naïve"], {"dog": "dˈɔɡ"}, reader)) == [("cat", "kˈæt")]
    assert asked == ["Cat"]


def test_what_a_rule_finds_is_not_kept() -> None:
    sounds = {"cat": "kˈæt", "cat's": "kˈæts", "dog": "dˈɔɡ", "dog's": "dˈɔɡs"}
    assert without_rules(sounds) == {"cat": "kˈæt", "dog": "dˈɔɡ", "dog's": "dˈɔɡs"}


def test_the_lexicon_knows_common_words() -> None:
    words = Lexicon.read(lexicon.SHIPPED)
    assert len(words.sounds) > 80_000
    for word in ("the", "of", "and", "you", "water", "people", "photosynthesis", "wednesday's", "colonel"):
        assert words.find(word), word


def test_names_are_said_as_the_list_has_them() -> None:
    names = read_names(NAMES)
    shipped = Lexicon.read(lexicon.SHIPPED)
    assert names
    assert {name: shipped.find(name) for name in names} == names
    known = {"jose": "ʤˈOs", "jose's": "ʤˈOsᵻz", "cat": "kˈæt"}
    assert with_names(known, {"jose": "hOzˈA"}) == {"jose": "hOzˈA", "cat": "kˈæt"}
    assert shipped.find("garcia's") == "ɡɑɹsˈiəz"


def test_names_go_into_the_lexicon_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, out = tmp_path / "known.zz", tmp_path / "voice" / "lexicon.zz"
    out.parent.mkdir()
    Lexicon({"cat": "kˈæt", "jose": "ʤˈOs"}).write(known)
    (tmp_path / "names.txt").write_text("jose hOzˈA\n", encoding="utf-8")
    before = known.read_bytes()
    options = {"--known": known, "--names": tmp_path / "names.txt", "--out": out}
    monkeypatch.setattr("sys.argv", ["lexicon", *(str(word) for option in options.items() for word in option)])
    lexicon.main()
    assert Lexicon.read(out).sounds == {"cat": "kˈæt", "jose": "hOzˈA"}
    assert known.read_bytes() == before


@pytest.mark.parametrize("line", ["jose", "Jose hOzˈA", "jose hOzéA", "jose hOzˈA extra", "ana ˈænə\nana ˈɑnə", ""])
def test_a_line_that_is_no_name_is_told(tmp_path: Path, line: str) -> None:
    (tmp_path / "names.txt").write_text(f"# remark\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"names.txt, line \d"):
        read_names(tmp_path / "names.txt")
