"""Converts text to token ids as the official package does by tokenizer.json, without transformers.

Three things are not in the file itself:

- Chinese words are split into single characters, as they were in training; otherwise Chinese comes out garbled.
- A blank at the start of a text counts once. The official package loads the file with transformers' LlamaTokenizerFast.
  Since version 5 that replaces the file's own rule, which always puts "▁" first, by one that does not do so if a text
  begins with a blank or "▁". " Hello" therefore has the ids of "Hello", not one more. For all other texts the two rules
  are equal, and the later one is that of our parity reference.
- A client's text must never become a control token: "<|audio_start|>" in it is read aloud or skipped like any other
  text, where the official code would take it for the start of the audio.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sonant.errors import BadText, CheckpointError
from sonant.models.published import Raw, agree, read_json

# Constants of the model, whatever the file calls them; 102 ends audio in training only.
AUDIO_START, AUDIO_END, REFERENCE_START, REFERENCE_END = 101, 102, 103, 104

_NAMES = {
    "<|audio_start|>": AUDIO_START,
    "<|audio_end|>": AUDIO_END,
    "<|ref_audio_start|>": REFERENCE_START,
    "<|ref_audio_end|>": REFERENCE_END,
    "<|audio_prompt_start|>": REFERENCE_START,
    "<|audio_prompt_end|>": REFERENCE_END,
}
_BLANK = "▁"
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_LIKE_CONTROL = re.compile(r"<\|.*\|>", re.DOTALL)
_LIKE_MARKUP = re.compile(r"<.*>", re.DOTALL)


class TextTokenizer:
    """SentencePiece's BPE with byte fallback; `controls` are the ids that no text has."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tokenizer.json"
        raw = read_json(self.path)
        added = _added_tokens(raw, self.path)
        vocab = {**_vocab(raw, self.path), **{token: entry["id"] for token, entry in added.items()}}
        named = [(name, i) for name, i in _NAMES.items() if name in vocab]
        agree(str(self.path), *((name, vocab[name], "the model's own", i) for name, i in named))
        control = {token for token, i in vocab.items() if _is_control(token, i, added.get(token))}
        lacking = [byte for byte in _BYTES if byte not in vocab or byte in control]
        if lacking:
            raise CheckpointError(
                f"{self.path} has no token {lacking[0]} for text, or it has the id of a control token; get the file "
                "published with this model"
            )
        self.size = 1 + max(vocab.values())
        self.controls = frozenset(vocab[token] for token in control)
        self._characters = _chinese_words(vocab)
        words = {token: entry for token, entry in added.items() if token not in control}
        self._bpe = _text_only(raw, control, words, self.path)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without <s> first: the official code asks for tokens, and converts them to ids itself."""
        try:
            text.encode()
        except UnicodeEncodeError as e:
            shown = ascii(text[max(0, e.start - 10) : e.end + 10])
            raise BadText(f"the text is not valid Unicode at {shown}: was it decoded with errors?") from None
        return [i for token in self._bpe.encode(text).ids for i in self._characters.get(token, (token,))]


def _vocab(raw: Raw, path: Path) -> Mapping[str, int]:
    model = raw.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict) or not all(type(i) is int for i in vocab.values()):
        raise CheckpointError(f"{path}: 'model.vocab' does not map tokens to ids; get the file again")
    return vocab


def _added_tokens(raw: Raw, path: Path) -> dict[str, Raw]:
    try:
        return {str(entry["content"]): {**entry, "id": int(entry["id"])} for entry in raw.get("added_tokens") or ()}
    except (KeyError, TypeError, ValueError) as e:
        raise CheckpointError(f"{path}: 'added_tokens' does not name tokens and ids ({e!r}); get it again") from e


def _is_control(token: str, number: int, added: Raw | None) -> bool:
    """An added token that neither is special nor looks like markup is no control token, but a word to be kept whole."""
    if number in _NAMES.values() or _LIKE_CONTROL.fullmatch(token):
        return True
    return added is not None and bool(added.get("special") or _LIKE_MARKUP.fullmatch(token))


def _chinese_words(vocab: Mapping[str, int]) -> dict[int, tuple[int, ...]]:
    """Id of a word of two characters or more → ids of its characters; a "▁" before it is dropped, as officially.

    BPE builds words from characters that are tokens, so a word with any other character never occurs.
    """
    words = {token for token in vocab if len(token) > 1 and all("\u4e00" <= c <= "\u9fff" for c in token)}
    cut = {}
    for token, number in vocab.items():
        word = token.replace(_BLANK, "")
        if word in words and all(character in vocab for character in word):
            cut[number] = tuple(vocab[character] for character in word)
    return cut


def _text_only(raw: Raw, control: Set[str], words: Mapping[str, Raw], path: Path) -> Tokenizer:
    """The same BPE without the control tokens, with blanks as LlamaTokenizerFast treats them."""
    try:
        model: dict[str, Any] = {**raw["model"], "byte_fallback": True, "ignore_merges": False, "dropout": None}
        model["vocab"] = {token: i for token, i in model["vocab"].items() if token not in control}
        # An added token that the vocabulary lacks would be given the next free id instead of its own.
        model["vocab"].update({token: entry["id"] for token, entry in words.items()})
        if model.get("unk_token") in control:
            model["unk_token"] = None  # no text needs it: all can be encoded as bytes
        # Merges of a converted file may spell control tokens, for example "<" and "s>".
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [[one, two] for one, two in pairs if control.isdisjoint((one, two, one + two))]
        blanks = {"type": "Metaspace", "replacement": _BLANK, "prepend_scheme": "always", "split": False}
        others = {"normalizer": None, "post_processor": None, "decoder": None, "truncation": None, "padding": None}
        made = {**raw, **others, "added_tokens": list(words.values()), "pre_tokenizer": blanks, "model": model}
        return Tokenizer.from_str(json.dumps(made))
    except Exception as e:  # tokenizers raises no narrower type
        raise CheckpointError(f"{path} is no tokenizer that can be read ({e!r}); get it again") from e
