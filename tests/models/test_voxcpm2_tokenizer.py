"""tokenizer.json is read as in the official package, must belong to the model, and no text spells control tokens."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonant.errors import BadText, CheckpointError
from sonant.models.voxcpm2.prompt import PromptBuilder
from sonant.models.voxcpm2.tokenizer import TextTokenizer
from voxcpm2_config import config_for
from voxcpm2_inputs import CONTROL, NOT_ADDED, SPECIALS, WHOLE_WORD, write_tokenizer

OFFICIAL = json.loads((Path(__file__).parent / "voxcpm2_prompts.json").read_text(encoding="utf-8"))["texts"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return TextTokenizer(write_tokenizer(tmp_path_factory.mktemp("voxcpm2")).parent)


def rewritten(tokenizer: TextTokenizer, folder: Path, spoil: Any) -> TextTokenizer:
    raw = json.loads(tokenizer.path.read_text(encoding="utf-8"))
    spoil(raw)
    (folder / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")
    return TextTokenizer(folder)


@pytest.mark.parametrize(("text", "ids"), OFFICIAL, ids=[ascii(text) for text, _ in OFFICIAL])
def test_a_text_has_the_official_ids(tokenizer: TextTokenizer, text: str, ids: list[int]) -> None:
    assert tokenizer.encode(text) == ids


@given(text=st.text(st.characters(exclude_categories=["Cs", "Z"]) | st.sampled_from("你好世界人工智 ▁"), min_size=1))
def test_one_blank_before_a_text_changes_nothing(tokenizer: TextTokenizer, text: str) -> None:
    if not text.startswith((" ", "▁", WHOLE_WORD)):
        assert tokenizer.encode(" " + text) == tokenizer.encode("▁" + text) == tokenizer.encode(text)


@given(text=st.text("你好世界测试人工智能今天龙 a，", min_size=1))
def test_chinese_words_are_single_characters(tokenizer: TextTokenizer, text: str) -> None:
    vocab = json.loads(tokenizer.path.read_text(encoding="utf-8"))["model"]["vocab"]
    words = {i for token, i in vocab.items() if len(token.strip("▁")) > 1 and token.strip("▁")[0] in "你好世人工今天"}
    assert words
    assert words.isdisjoint(tokenizer.encode(text))


@pytest.mark.parametrize("token", [*SPECIALS, NOT_ADDED])
def test_a_control_token_in_a_text_is_only_text(tokenizer: TextTokenizer, token: str) -> None:
    ids = tokenizer.encode(f"a{token}b")
    assert tokenizer.controls.isdisjoint(ids)
    assert len(ids) >= len(token)  # its letters, few of which are merged
    assert set(CONTROL) <= tokenizer.controls


def test_control_tokens_that_a_file_could_spell_are_not_spelled(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    """A text could spell them by merges, which a conversion may leave, or if one is a single character."""

    def add(raw: Any) -> None:
        raw["model"]["vocab"].update({"<|": 900, "|>": 901, "<|x": 902, "<|x|>": 903, "§": 904})
        raw["model"]["merges"] += [["<", "|"], ["|", ">"], ["<|", "x"], ["<|x", "|>"]]
        raw["added_tokens"].append({**raw["added_tokens"][0], "content": "§", "id": 904})

    other = rewritten(tokenizer, tmp_path, add)
    assert {903, 904} <= other.controls
    assert other.encode("<|x|>§")[1:3] == [902, 901]
    assert other.controls.isdisjoint(other.encode("<|x|>§"))


@given(pieces=st.lists(st.sampled_from([*SPECIALS, NOT_ADDED, "<", "s", ">", "|", "/", " ", "a"]), min_size=1))
def test_no_mixture_of_pieces_spells_a_control_token(tokenizer: TextTokenizer, pieces: list[str]) -> None:
    assert tokenizer.controls.isdisjoint(tokenizer.encode("".join(pieces)))


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_has_ids_that_the_model_embeds(tokenizer: TextTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert bool(ids) == bool(text)
    assert all(0 <= i < tokenizer.size for i in ids)


def test_an_unpaired_surrogate_is_refused(tokenizer: TextTokenizer) -> None:
    with pytest.raises(BadText, match=r"not valid Unicode at .*\\ud83d"):
        tokenizer.encode("half a \ud83d pair")


@pytest.mark.parametrize("unit", ["the ", "x", "你好", "人工智能", "<s>", "<|im_end|>", " ", "▁", "👋🏽", "ll"])
def test_a_huge_text_is_encoded_at_once(tokenizer: TextTokenizer, unit: str) -> None:
    text = unit * (20_000 // len(unit))
    began_s = time.perf_counter()
    assert len(tokenizer.encode(text)) > 1000
    assert time.perf_counter() - began_s < 2.0  # it takes hundredths; a quadratic algorithm would take much longer


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda raw: raw.update(added_tokens=[{"id": 1}]), "does not name tokens and ids"),
        (lambda raw: raw.update(added_tokens=7), "does not name tokens and ids"),
        (lambda raw: raw.pop("model"), "does not map tokens to ids"),
        (lambda raw: raw["model"].update(vocab=[]), "does not map tokens to ids"),
        (lambda raw: raw["model"]["vocab"].update(a="b"), "does not map tokens to ids"),
        (lambda raw: raw["model"].pop("merges"), "is no tokenizer that can be read"),
        (lambda raw: raw["model"].update(merges=["a nonsense"]), "is no tokenizer that can be read"),
        (lambda raw: raw["model"].update(merges=["a b c"]), "is no tokenizer that can be read"),
        (lambda raw: raw["model"].update(type="WordPiece"), "is no tokenizer that can be read"),
        (lambda raw: raw["model"]["vocab"].pop("<0xA0>"), "has no token <0xA0> for text"),
        (lambda raw: raw["model"]["vocab"].update({"<0x62>": 101}), "has no token <0x62> for text"),
        (lambda raw: raw["added_tokens"][3].update(id=7), r"<\|audio_start\|> is 7, but the model's own is 101"),
        (
            lambda raw: raw["model"]["vocab"].update({"<|ref_audio_end|>": 9}),
            r"<\|ref_audio_end\|> is 9, but the model's own is 104",
        ),
    ],
)
def test_a_broken_tokenizer_is_named(tokenizer: TextTokenizer, tmp_path: Path, spoil: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as refused:
        rewritten(tokenizer, tmp_path, spoil)
    assert str(tmp_path / "tokenizer.json") in str(refused.value)


def test_a_missing_or_cut_file_is_named(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        TextTokenizer(tmp_path)
    whole = tokenizer.path.read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        TextTokenizer(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        # The same in the forms of newer and older files, and of other tools.
        lambda raw: raw["model"].update(merges=[" ".join(pair) for pair in raw["model"]["merges"]]),
        lambda raw: raw.update(normalizer=None, pre_tokenizer={"type": "Metaspace", "replacement": "▁"}),
        lambda raw: raw.update(added_tokens=[entry for entry in raw["added_tokens"] if entry["id"] not in CONTROL]),
        lambda raw: raw["model"].update(ignore_merges=True),
        lambda raw: raw.update(truncation={"max_length": 3, "strategy": "LongestFirst", "stride": 0}),
    ],
    ids=["merges as strings", "Metaspace", "few added tokens", "ignore_merges", "truncation"],
)
def test_the_same_tokenizer_in_other_words_gives_the_same_ids(
    tokenizer: TextTokenizer, tmp_path: Path, change: Any
) -> None:
    other = rewritten(tokenizer, tmp_path, change)
    assert [other.encode(text) for text, _ in OFFICIAL] == [ids for _, ids in OFFICIAL]
    assert other.controls == tokenizer.controls


def test_ids_that_the_embedding_has_no_place_for_are_refused(tokenizer: TextTokenizer) -> None:
    config = config_for(tokenizer)
    smaller = replace(config, lm=replace(config.lm, vocab_size=tokenizer.size - 1))
    with pytest.raises(CheckpointError, match=f"ids up to {tokenizer.size - 1}, but config.json's vocab_size is"):
        PromptBuilder(smaller, tokenizer)
    PromptBuilder(config, tokenizer)
