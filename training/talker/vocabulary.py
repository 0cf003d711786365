"""The voice's text tokenizer: one token for each byte, in the published files' form.

A small talker learns spelling from letters it meets thousands of times better than from words it meets twice.
Only the roles of the prompt template are words, since prompts are cut by counting tokens. Byte pairs cannot make
one word without its parts becoming tokens too; the chains begin with pairs that are common enough to be learnt.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from sonant.models.qwen3_tts.synthetic.vocabulary import byte_characters, write_tokenizer
from sonant.text.lexicon import alphabet

_CHAINS = (
    ("ss", "ssi", "ssis", "assis", "assist", "assista", "assistan", "assistant"),
    ("us", "use", "user"),
)


def character_bpe() -> tuple[dict[str, int], list[str]]:
    """Bytes, the roles, and one token for each sound of the lexicon."""
    characters = byte_characters()
    vocab = {char: byte for byte, char in enumerate(characters)}
    merges = []
    for chain in _CHAINS:
        before = chain[0][0]
        for word in chain:
            vocab[word] = len(vocab)
            merges.append(f"{before} {word[-1]}" if word.startswith(before) else f"{word[0]} {before}")
            before = word
    for symbol in alphabet():
        before, *rest = (characters[byte] for byte in symbol.encode())
        for char in rest:
            if before + char not in vocab:
                vocab[before + char] = len(vocab)
                merges.append(f"{before} {char}")
            before += char
    return vocab, merges


def write_character_tokenizer(folder: Path) -> dict[str, int]:
    """vocab.json, merges.txt and tokenizer_config.json; → the control tokens' ids."""
    vocab, merges = character_bpe()
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        (source / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
        (source / "merges.txt").write_text("".join(f"{m}\n" for m in merges), encoding="utf-8")
        return write_tokenizer(folder, source)
