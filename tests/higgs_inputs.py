"""Inputs for tests of Higgs Audio V2's prompts, for the official processor and ours alike. Needs nothing of ours.

The tokenizer.json is like the published one but small: bytes, a few merges, its first special tokens. It reads text as
Llama 3's does (the same split into words, <|begin_of_text|> put first by its post-processor), so that the ids show
which texts were joined and where they were cut.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

SPECIALS = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|audio_bos|>", "<|audio_eos|>", "<|audio_out_bos|>",
    "<|reserved_special_token_6|>", "<|AUDIO|>", "<|AUDIO_OUT|>", "<|recipient|>", "<|scene_desc_start|>",
    "<|scene_desc_end|>", "<|generation_instruction_start|>", "<|generation_instruction_end|>",
    "<SE>", "</SE>", "<SE_s>", "</SE_s>", "<SE_e>", "</SE_e>",
)  # fmt: skip
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# First those across a seam of the template: "\n\n" before and after a text, a full stop before it.
MERGES = (
    "Ċ Ċ", "ĊĊ Ċ", ". ĊĊ", ". Ċ", "] Ċ", "] ĊĊ", "Ġ t", "h e", "Ġt he", "i n", "Ġ a", "e r", "o n", "i o", "Ġ r",
    "S P", "E A", "SP EA", "E R", "K ER", "SPEA KER", "[ SPEAKER", "Ġ [", "Ġ[ SPEAKER", "L a", "[ La", "c t", "u s",
    "us er", "s y", "s t", "sy st", "a s", "Ġ <", "< |", "e o", "eo t", "| >", "Ġ .", ". .",
)  # fmt: skip


def write_tokenizer(folder: Path) -> Path:
    merges = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
    begin = SPECIALS[0]
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, len(symbols))]),
        ]
    )
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def codes_of(seed: int, frames: int) -> np.ndarray:
    """The codes of a "clip", made without a codec: [frames, 8] int32."""
    chosen = np.arange(frames)[:, None] * 137 + np.arange(8) * 61 + seed * 389 + 1023
    return (chosen % 1024).astype(np.int32)
