"""The built-in prompts, and prompts from a user's own file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonant.bench.client.prompts import LANGUAGES, LENGTHS, built_in, from_file, worded
from sonant.errors import ConfigError


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_three_lengths(language: str) -> None:
    sizes = []
    for length in LENGTHS:
        prompts = built_in([language], [length])
        assert len(prompts) >= 6
        assert len({p.text for p in prompts}) == len({p.name for p in prompts}) == len(prompts)
        assert all(p.language == language for p in prompts)
        sizes.append(sum(len(p.text) for p in prompts) / len(prompts))
    assert sizes[0] < sizes[1] / 2 and sizes[1] < sizes[2] / 2


def test_any_beginning_is_a_mix() -> None:
    first = built_in(["english", "chinese"], ["short", "long"])[:4]
    assert {(p.language, p.name.split("-")[1]) for p in first} == {
        (language, length) for language in ("english", "chinese") for length in ("short", "long")
    }


def test_one_text_a_line(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("One.\n\n Two, with | a bar.\n", encoding="utf-8")
    found = from_file(tmp_path / "t.txt", "english")
    assert [(p.name, p.text) for p in found] == [("line-0001", "One."), ("line-0002", "Two, with | a bar.")]


def test_wordings_differ_from_their_first_character_and_keep_names_apart() -> None:
    plain = built_in(["english"], ["medium"])
    assert worded(plain, 1) == plain
    first, second = worded(plain, 20), worded(plain, 20, seed=1)
    assert len(first) == 20 * len(plain) and all(p.language == "english" for p in first)
    assert len({p.name for p in first + second}) == len({p.text for p in first + second}) == 40 * len(plain)
    assert first[0].text == f"0. {plain[0].text}" and second[-1].text == f"39. {plain[-1].text}"


def test_prompts_of_one_name_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    lines = ["\ufeffu|Said.|a.wav|One.", "u|Said.|a.wav|Two.", "v|Said.|a.wav|Three."]
    (tmp_path / "meta.lst").write_text("\n".join(lines), encoding="utf-8")
    found = from_file(tmp_path / "meta.lst")
    assert [(p.name, p.text) for p in found] == [("u", "One."), ("u-0002", "Two."), ("v", "Three.")]


def test_seed_tts_lists_clone(tmp_path: Path) -> None:
    (tmp_path / "wavs").mkdir()
    (tmp_path / "wavs" / "a.wav").write_bytes(b"RIFF")
    (tmp_path / "meta.lst").write_text("u1|What was said.|wavs/a.wav|What to say.\n", encoding="utf-8")
    (prompt,) = from_file(tmp_path / "meta.lst")
    assert (prompt.name, prompt.text) == ("u1", "What to say.")
    assert prompt.reference is not None
    assert (prompt.reference.clip, prompt.reference.text) == (tmp_path / "wavs" / "a.wav", "What was said.")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.txt", "\n \n", "holds no prompts"),
        ("meta.lst", "a|b|c\n", "has 3 fields"),
        ("meta.lst", "a|b|missing.wav|d\n", "missing.wav, which is not there"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        from_file(tmp_path / name)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        from_file(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no prompt set in 'klingon'"):
        built_in(["klingon"])
    with pytest.raises(ConfigError, match="no prompt set of length 'huge'"):
        built_in(lengths=["huge"])
