"""Inputs for tests of VoxCPM2's prompts, for the official package and ours alike. Needs nothing of ours.

The tokenizer.json has the form of the published one (SentencePiece's BPE as transformers converts it: "▁" put first by
a normalizer, bytes to fall back on, <s> put first by a post-processor) but few tokens, chosen to bring out every way in
which a text can go wrong.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, models, normalizers, processors

PATCH_SIZE, FEAT_DIM = 2, 3
CONTROL = {101: "<|audio_start|>", 102: "<|audio_end|>", 103: "<|audio_prompt_start|>", 104: "<|audio_prompt_end|>"}
NOT_ADDED = "<|background|>"  # a control token that is in the vocabulary only; the published file has some
SPECIALS = ("<unk>", "<s>", "</s>", *CONTROL.values(), "<|im_end|>")
WHOLE_WORD = "{hi}"  # an added token, but no control token
CHARACTERS = "你好世界测试语音今天气不错人工智能龙凤，。！？（）"
# Words of two or three characters; with a blank before them; and one that needs its blank to be a word: it stays whole.
MERGES = (
    "▁ t", "t h", "▁ th", "h e", "▁th e", "l l", "i n", "o n", "s >", "< s>", "( w", "▁ 你", "你 好", "▁你 好",
    "世 界", "人 工", "人工 智", "今 天", "天 气", "▁ 世界", "▁ 龙", "▁龙 凤", "好 世",
)  # fmt: skip


def write_tokenizer(folder: Path) -> Path:
    merges = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
    letters = ["▁", *(chr(c) for c in range(33, 127))]
    symbols = [*letters, *(f"<0x{b:02X}>" for b in range(256)), *CHARACTERS]
    symbols += [token for left, right in merges if (token := left + right) not in SPECIALS]
    vocab = {token: i for i, token in enumerate(SPECIALS[:3])} | {token: i for i, token in CONTROL.items()}
    free = (i for i in range(1000) if i > 2 and i not in CONTROL)
    vocab |= dict(zip([*symbols, NOT_ADDED], free, strict=False))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
    tokenizer.add_tokens([AddedToken(WHOLE_WORD, normalized=False)])
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "VoxCPM2Tokenizer", "add_bos_token": True, "legacy": True, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def latents_of(seed: int, frames: int, padding: str) -> np.ndarray:
    """The patches of a "clip", made without a codec: whole numbers as float32, none of them 0."""
    count = np.arange(frames * PATCH_SIZE * FEAT_DIM).reshape(frames, PATCH_SIZE, FEAT_DIM)
    return (1000 * seed + (500 if padding == "left" else 0) + 1 + count).astype(np.float32)
