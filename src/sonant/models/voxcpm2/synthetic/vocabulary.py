"""Writes the text tokenizer's files, with the real vocabulary or with a small one.

The real vocabulary is another project's data and is not part of ours. The small one is of its kind (spaces as
SentencePiece writes them, merges, byte fallback), so it tokenises any text, only into more tokens. Some of its tokens
have several Chinese characters, which the model must be given one by one.
"""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path
from typing import Any

from sonant.errors import CheckpointError
from sonant.models.published import read_json

# The model has these ids built in; no text is ever tokenised into them.
CONTROLS = {101: "<|audio_start|>", 102: "<|audio_end|>", 103: "<|ref_audio_start|>", 104: "<|ref_audio_end|>"}
SPECIALS = ("<unk>", "<s>", "</s>")
SPACE = "▁"
CHINESE = "你好世界测试语音合成今天气不错人工智能，。！？、（）"
# The first in this order is merged first.
_PAIRS = (
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng ll lo wo ld el ▁t ▁h ▁w ▁a ▁s "
    "你好 世界 测试 语音 合成 今天 天气 不错 人工 智能"
)
_LONGER = (("▁", "th"), ("▁", "你好"), ("人工", "智能"))


def write_tokenizer(folder: Path, real: Path | None) -> int:
    """Write tokenizer.json and tokenizer_config.json; return how many ids they use."""
    if real is None:
        content = small_tokenizer()
        (folder / "tokenizer.json").write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
    else:
        if not (real / "tokenizer.json").is_file():
            raise CheckpointError(f"{real / 'tokenizer.json'} is missing: a folder of the text tokenizer holds it")
        shutil.copyfile(real / "tokenizer.json", folder / "tokenizer.json")
        content = read_json(real / "tokenizer.json")
    config = {
        "tokenizer_class": "LlamaTokenizerFast",
        "add_bos_token": True,
        "add_eos_token": False,
        "unk_token": SPECIALS[0],
        "bos_token": SPECIALS[1],
        "eos_token": SPECIALS[2],
        "legacy": True,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    ids = [*content["model"]["vocab"].values(), *(token["id"] for token in content.get("added_tokens", ()))]
    return int(max(ids)) + 1


def small_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The tokens' ids, with the ids that the model has built in left to its control tokens, and the merges."""
    merges = [*((pair[0], pair[1]) for pair in _PAIRS.split()), *_LONGER]
    printable = [chr(code) for code in range(33, 127)]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*SPECIALS, SPACE, *printable, *fallback, *CHINESE, *("".join(merge) for merge in merges)]
    free = (i for i in count() if i not in CONTROLS)
    return {token: next(free) for token in tokens} | {token: i for i, token in CONTROLS.items()}, merges


def small_tokenizer() -> dict[str, Any]:
    """tokenizer.json. As with the published one, encoding with special tokens adds <s>, which the model never gets."""
    vocab, merges = small_vocabulary()
    added = {token: vocab[token] for token in (*SPECIALS, *CONTROLS.values())}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    begin, text, other = (
        {kind: {"id": name, "type_id": i}}
        for kind, name, i in (("SpecialToken", SPECIALS[1], 0), ("Sequence", "A", 0), ("Sequence", "B", 1))
    )
    space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    unspace = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for token, i in added.items()],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, space]},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, text],
            "pair": [begin, text, other],
            "special_tokens": {SPECIALS[1]: {"id": SPECIALS[1], "ids": [vocab[SPECIALS[1]]], "tokens": [SPECIALS[1]]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                unspace,
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": SPECIALS[0],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": dict(sorted(vocab.items(), key=lambda entry: entry[1])),
            "merges": [list(merge) for merge in merges],
        },
    }
