"""Writes the text tokenizer's files, with the real vocabulary or with one of single bytes.

The real vocabulary is another project's data and is not part of ours. Single bytes tokenise any text, only into more
tokens. The special tokens are the published ones, and at full size have the published ids.
"""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path
from typing import Any

from sonant.errors import CheckpointError
from sonant.models.byte_vocabulary import byte_characters
from sonant.models.published import read_json

# In id order; the published ids begin at FIRST_SPECIAL.
SPECIALS = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
    *("<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|audio_bos|>", "<|audio_eos|>", "<|audio_out_bos|>"),
    *("<|reserved_special_token_6|>", "<|AUDIO|>", "<|AUDIO_OUT|>", "<|recipient|>", "<|scene_desc_start|>"),
    *("<|scene_desc_end|>", "<|generation_instruction_start|>", "<|generation_instruction_end|>"),
    *("<SE>", "</SE>", "<SE_s>", "</SE_s>", "<SE_e>", "</SE_e>"),
)
FIRST_SPECIAL = 128000
BOS, PAD = SPECIALS[0], SPECIALS[1]
_TEMPLATE = (("SpecialToken", BOS, 0), ("Sequence", "A", 0), ("Sequence", "B", 1))


def write_tokenizer(folder: Path, *, first_special: int, real: Path | None) -> dict[str, int]:
    """Write tokenizer.json and tokenizer_config.json; return the special tokens' ids."""
    if real is None:
        ids = dict(zip(SPECIALS, count(first_special)))
        _write(folder / "tokenizer.json", byte_tokenizer(ids))
    else:
        if not (real / "tokenizer.json").is_file():
            raise CheckpointError(f"{real / 'tokenizer.json'} is missing: a folder of the text tokenizer holds it")
        shutil.copyfile(real / "tokenizer.json", folder / "tokenizer.json")
        added = {token["content"]: token["id"] for token in read_json(real / "tokenizer.json").get("added_tokens", ())}
        if lacking := [token for token in SPECIALS if token not in added]:
            raise CheckpointError(f"{real / 'tokenizer.json'} lacks {lacking[0]}: it is not this model's tokenizer")
        ids = {token: added[token] for token in SPECIALS}
    config = {
        "bos_token": BOS,
        "eos_token": "<|eot_id|>",
        "pad_token": PAD,
        "extra_special_tokens": [token for token in SPECIALS if token not in (BOS, PAD, "<|eot_id|>")],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    _write(folder / "tokenizer_config.json", config)
    return ids


def byte_tokenizer(ids: dict[str, int]) -> dict[str, Any]:
    """tokenizer.json: bytes without merges, and the special tokens, even where their ids leave a gap.

    As in the published file, a text that is encoded with special tokens gets the first one in front.
    """
    bos = {"id": BOS, "ids": [ids[BOS]], "tokens": [BOS]}
    begin, text, other = ({kind: {"id": name, "type_id": i}} for kind, name, i in _TEMPLATE)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for token, i in ids.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, text],
            "pair": [begin, text, other],
            "special_tokens": {BOS: bos},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {char: byte for byte, char in enumerate(byte_characters())} | ids,
            "merges": [],
        },
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
