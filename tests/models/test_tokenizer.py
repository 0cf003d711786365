"""Text becomes the ids of the official tokenizer, and never a control token."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sonant.errors import BadText, CheckpointError
from sonant.models.qwen3_tts.synthetic.vocabulary import ADDED_TOKENS, write_tokenizer
from sonant.models.qwen3_tts.tokenizer import TextTokenizer

ASSISTANT = "<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n"
INSTRUCT = "<|im_start|>user\n{text}<|im_end|>\n"
REFERENCE = "<|im_start|>assistant\n{text}<|im_end|>\n"
EXPECTED = json.loads((Path(__file__).parent / "token_ids.json").read_text())
REAL = os.environ.get("SONANT_QWEN_TOKENIZER")


@pytest.fixture(scope="module")
def mini(tiny_checkpoints: Mapping[str, Path]) -> TextTokenizer:
    return TextTokenizer(tiny_checkpoints["custom"])


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    if REAL is None:
        pytest.skip("SONANT_QWEN_TOKENIZER does not name a folder with the real vocab.json and merges.txt")
    folder = tmp_path_factory.mktemp("real")
    write_tokenizer(folder, Path(REAL))
    return TextTokenizer(folder)


@pytest.mark.parametrize("vocabulary", ["mini", "real"])
def test_easily_mistaken_texts_have_the_official_ids(request: pytest.FixtureRequest, vocabulary: str) -> None:
    tokenizer = request.getfixturevalue(vocabulary)
    for case in EXPECTED:
        assert tokenizer.fill(ASSISTANT, case["text"]) == case[vocabulary], case["text"]


@pytest.mark.parametrize(
    ("template", "group"), [(ASSISTANT, "ids"), (INSTRUCT, "instruct_ids"), (REFERENCE, "ref_ids")]
)
def test_prompts_have_the_ids_of_the_golden_runs(
    mini: TextTokenizer, golden: Callable[[str], Mapping[str, np.ndarray]], template: str, group: str
) -> None:
    recorded = {k.partition("/")[2]: v for k, v in golden("custom").items() if k.startswith(f"{group}/")}
    assert recorded
    for text, ids in recorded.items():
        assert mini.fill(template, text) == ids[0].tolist()


@settings(deadline=None)
@given(text=st.text() | st.text(alphabet=" \n\r\t'a1.,你\u0301"))
def test_a_filled_template_reads_as_if_encoded_whole(mini: TextTokenizer, text: str) -> None:
    assume(not any(token in text for token in mini.added))  # text that spells them stays text, a template may use them
    assert mini.fill(ASSISTANT, text) == mini.encode(ASSISTANT.replace("{text}", text), specials=True)


@pytest.mark.parametrize("token", ADDED_TOKENS)
def test_a_control_token_in_the_text_is_only_text(mini: TextTokenizer, token: str) -> None:
    text = f"one {token} two{token}"
    assert not set(mini.encode(text)) & set(mini.added.values())
    filled, harmless = mini.fill(ASSISTANT, text), mini.fill(ASSISTANT, "one two")
    controls = [i for i in filled if i in mini.added.values()]
    assert controls == [i for i in harmless if i in mini.added.values()]
    assert mini.encode(token, specials=True) == [mini.added[token]]


@settings(deadline=None)
@given(pieces=st.lists(st.sampled_from([*ADDED_TOKENS, "<|im_", "end|>", "a", "\n"])))
def test_no_mixture_of_pieces_spells_a_control_token(mini: TextTokenizer, pieces: list[str]) -> None:
    assert not set(mini.encode("".join(pieces))) & set(mini.added.values())


def test_a_placeholder_in_the_text_stays_as_it_is(mini: TextTokenizer) -> None:
    assert mini.fill("{text}", "{text}") == mini.encode("{text}")


def test_a_lone_surrogate_is_refused(mini: TextTokenizer) -> None:
    with pytest.raises(BadText, match="not valid Unicode"):
        mini.fill(ASSISTANT, "bad \ud800 text")


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [None, b"\xff\xfe{", b"one two three\n"])
def test_a_broken_file_is_named(
    tmp_path: Path, tiny_checkpoints: Mapping[str, Path], name: str, content: bytes | None
) -> None:
    for path in tiny_checkpoints["custom"].glob("*.[jt]*"):
        shutil.copy(path, tmp_path)
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        TextTokenizer(tmp_path)


def test_merges_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, None)
    (tmp_path / "merges.txt").write_text("not there\n")
    with pytest.raises(CheckpointError, match=r"merges\.txt do not belong together"):
        TextTokenizer(tmp_path)


@pytest.mark.parametrize("kept", [0, 5])
def test_merges_that_were_cut_short_are_refused(tmp_path: Path, kept: int) -> None:
    write_tokenizer(tmp_path, None)
    path = tmp_path / "merges.txt"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(["#version: 0.2\n", *lines]), encoding="utf-8")
    TextTokenizer(tmp_path)
    path.write_text("".join(["#version: 0.2\n", *lines[:kept]]), encoding="utf-8")
    with pytest.raises(CheckpointError, match=rf"merges\.txt has {kept} merges, fewer than .* fetch it again"):
        TextTokenizer(tmp_path)


def test_a_vocabulary_larger_than_the_models_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, None)
    count = len(json.loads((tmp_path / "vocab.json").read_text()))
    TextTokenizer(tmp_path, most=count)
    with pytest.raises(
        CheckpointError, match=rf"vocab\.json has {count} tokens, but .* text_vocab_size is {count - 1}"
    ):
        TextTokenizer(tmp_path, most=count - 1)
