"""tokenizer.json is read as in the official package, must belong to the model, and no text spells control tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from higgs_config import config_for
from higgs_inputs import write_tokenizer
from sonant.errors import CheckpointError
from sonant.models.higgs_audio_v2.prompt import PromptBuilder
from sonant.models.higgs_audio_v2.tokenizer import Control, TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return TextTokenizer(write_tokenizer(tmp_path_factory.mktemp("higgs")).parent)


def test_texts_are_joined_before_they_are_encoded(tokenizer: TextTokenizer) -> None:
    whole = tokenizer.encode(["one.\n\n\ntwo"])
    assert tokenizer.encode(["one", ".", "\n", "", "\n\ntwo"]) == whole
    assert len(whole) < len(tokenizer.encode(["one."])) + 3 + len(tokenizer.encode(["two"]))
    eot = Control("<|eot_id|>")
    assert tokenizer.encode(["one.", eot, "\n", eot, eot]) == [
        *tokenizer.encode(["one."]), tokenizer.ids["<|eot_id|>"], *tokenizer.encode(["\n"]),
        *[tokenizer.ids["<|eot_id|>"]] * 2,
    ]  # fmt: skip
    assert tokenizer.encode([]) == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"audio_token_id": 3}, r"<\|AUDIO_OUT\|> is \d+, but config.json's audio_token_id is 3"),
        ({"audio_bos_token_id": 3}, "audio_bos_token_id is 3"),
        ({"audio_delay_token_id": 3}, "audio_delay_token_id is 3"),
    ],
)
def test_ids_of_two_files_must_agree(tokenizer: TextTokenizer, config: dict[str, int], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        PromptBuilder(replace(config_for(tokenizer), **config), tokenizer)


def test_ids_that_the_embedding_has_no_place_for_are_refused(tokenizer: TextTokenizer) -> None:
    config = config_for(tokenizer)
    smaller = replace(config, llama=replace(config.llama, vocab_size=tokenizer.size - 1))
    with pytest.raises(CheckpointError, match="vocab_size is"):
        PromptBuilder(smaller, tokenizer)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda raw: raw.pop("added_tokens"), "lacks 'added_tokens'"),
        (lambda raw: raw.update(added_tokens=[{"id": 1}]), "does not name tokens and ids"),
        (lambda raw: raw.update(added_tokens=7), "does not name tokens and ids"),
        (lambda raw: raw.pop("model"), "is no tokenizer that can be read"),
        (lambda raw: raw["model"].update(vocab=[]), "is no tokenizer that can be read"),
        (lambda raw: raw["model"].update(merges=["a nonsense"]), "is no tokenizer that can be read"),
        (lambda raw: raw["added_tokens"].pop(13), r"lacks the token <\|audio_out_bos\|>"),
        (lambda raw: raw["added_tokens"].pop(), "lacks the token </SE_e>"),
    ],
)
def test_a_broken_tokenizer_is_named(tokenizer: TextTokenizer, tmp_path: Path, spoil: Any, words: str) -> None:
    raw = json.loads(tokenizer.path.read_text(encoding="utf-8"))
    spoil(raw)
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(CheckpointError, match=words) as refused:
        PromptBuilder(config_for(tokenizer), TextTokenizer(tmp_path))
    assert str(tmp_path / "tokenizer.json") in str(refused.value)


def test_a_missing_or_cut_file_is_named(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        TextTokenizer(tmp_path)
    whole = tokenizer.path.read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        TextTokenizer(tmp_path)


def test_control_tokens_in_the_vocabulary_too_are_not_spelled(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    """Some files list them twice, and with `ignore_merges` a word in the vocabulary would become its token."""
    raw = json.loads(tokenizer.path.read_text(encoding="utf-8"))
    raw["model"]["vocab"].update({"<|eot_id|>": tokenizer.ids["<|eot_id|>"]})
    raw["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")
    assert tokenizer.ids["<|eot_id|>"] not in TextTokenizer(tmp_path).encode(["<|eot_id|>"])
