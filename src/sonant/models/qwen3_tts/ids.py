"""Checks that every id in config.json has a line in the table that it is looked up in.

All the tables of codes are one in memory: an id past its own table's end would be a line of the next one, and the model
would speak in a voice that nobody made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sonant.errors import CheckpointError

if TYPE_CHECKING:
    from sonant.models.qwen3_tts.config import Qwen3TTSConfig, TalkerConfig

_TEXT = ("im_start_token_id", "im_end_token_id", "tts_pad_token_id", "tts_bos_token_id", "tts_eos_token_id")
_CODES = (
    "codec_bos_id", "codec_eos_token_id", "codec_pad_id",
    "codec_think_id", "codec_nothink_id", "codec_think_bos_id", "codec_think_eos_id",
)  # fmt: skip


def check_ids(config: Qwen3TTSConfig, where: str) -> None:
    """`where` is the file, for messages."""
    talker = config.talker
    for name in _TEXT:
        _check(where, name, getattr(config, name), "text_vocab_size", talker.text_vocab_size)
    for name in _CODES:
        _check(where, f"talker_config.{name}", getattr(talker, name), "vocab_size", talker.vocab_size)
    for group, ids in (("codec_language_id", talker.codec_language_id), ("spk_id", talker.spk_id)):
        for name, number in ids.items():
            _check(where, f"talker_config.{group}: {name}", number, "vocab_size", talker.vocab_size)
    _check_voices(config.kind, talker, where)


def _check(where: str, name: str, number: int, table: str, size: int) -> None:
    if not 0 <= number < size:
        raise CheckpointError(f"{where}: {name} is {number}, but talker_config.{table} is {size}")


def _check_voices(kind: str, talker: TalkerConfig, where: str) -> None:
    if kind == "custom_voice" and not talker.spk_id:
        raise CheckpointError(f"{where}: talker_config.spk_id is empty, but a custom_voice checkpoint has voices")
    for name, dialect in talker.spk_is_dialect.items():
        if isinstance(dialect, str) and dialect not in talker.codec_language_id:
            raise CheckpointError(
                f"{where}: talker_config.spk_is_dialect: {name} is {dialect!r}, which codec_language_id lacks"
            )
