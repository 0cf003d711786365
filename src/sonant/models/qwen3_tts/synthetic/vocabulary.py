"""Writes a checkpoint's text tokenizer files, with the real vocabulary or with a very small one.

The real vocabulary is another project's data and is not part of ours, so tests and benchmarks use a byte-level
one that tokenises any text, only into more tokens.
"""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path

from sonant.errors import CheckpointError
from sonant.models.byte_vocabulary import byte_characters
from sonant.models.published import read_json

# In id order, directly after the vocabulary. Those in PLAIN are matched in text but not marked special.
ADDED_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>"),
    *("<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>"),
    *("</tool_response>", "<think>", "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>"),
    *("<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>", "<|audio_pad|>"),
)
PLAIN = frozenset(ADDED_TOKENS[ADDED_TOKENS.index("<tool_call>") : ADDED_TOKENS.index("<|audio_start|>")])

# Prompts are sliced by token counts that hold only if each role is one token; the other words give a few merges.
MINI_WORDS = (*("assistant", "user", "the", "Ġthe", "ing", "and", "Ġand", "er", "on", "hello", "Ġworld", "speech"),)


def write_tokenizer(folder: Path, real: Path | None) -> dict[str, int]:
    """Write vocab.json, merges.txt and tokenizer_config.json; return the added tokens' ids."""
    if real is not None:
        for name in ("vocab.json", "merges.txt"):
            if not (real / name).is_file():
                raise CheckpointError(f"{real / name} is missing: a Qwen tokenizer folder holds it")
            shutil.copyfile(real / name, folder / name)
        vocab = read_json(folder / "vocab.json")
    else:
        vocab, merges = mini_bpe()
        (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
        (folder / "merges.txt").write_text("".join(f"{m}\n" for m in merges), encoding="utf-8")
    ids = dict(zip(ADDED_TOKENS, count(len(vocab))))
    config = {
        "added_tokens_decoder": {
            str(i): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": token not in PLAIN,
            }
            for token, i in ids.items()
        },
        "additional_special_tokens": [t for t in ADDED_TOKENS[1:] if t not in PLAIN],
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "processor_class": "Qwen3TTSProcessor",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return ids


def mini_bpe() -> tuple[dict[str, int], list[str]]:
    """A byte-level vocabulary with merges for `MINI_WORDS` only."""
    vocab = {char: byte for byte, char in enumerate(byte_characters())}
    merges = []
    for word in MINI_WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
    return vocab, merges
