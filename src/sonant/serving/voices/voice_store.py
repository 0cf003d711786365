"""Uploaded voices: kept across restarts, and shared by all servers that open the same folder.

A voice is one encoded file, named by its content, and one row of the index. Files are written and synced first, the
row last; `add` returns when both would survive a power cut. Before that nobody sees the voice: what a crash leaves
behind is a file without a row, which a later `VoiceStore` removes.

Every call touches the disk, if briefly: call from a worker thread, not from an event loop.
"""

from __future__ import annotations

import math
import secrets
import sqlite3
import time
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Literal, get_args

from sonant.errors import BadAudio, BadRequest, ConfigError, StoreError, UnknownVoice, VoiceExists
from sonant.serving.voices.bucket import Bucket
from sonant.serving.voices.bucket_files import BucketFiles
from sonant.serving.voices.bucket_index import BucketIndex
from sonant.serving.voices.consents import Consents
from sonant.serving.voices.content_files import ContentFiles, Lost, make_folder
from sonant.serving.voices.labels import checked_label, checked_language, checked_statement, is_id, label_key
from sonant.serving.voices.store_index import StoreIndex
from sonant.voice import Voice
from sonant.voice_cache import VoiceCache

ConsentPolicy = Literal["required", "asserted"]


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    consent: ConsentPolicy = "required"  # asserted: an uploader's written statement is enough instead
    max_voices: int = 1000
    max_consents: int = 1000
    max_name_chars: int = 64
    max_clip_bytes: int = 10 << 20  # OpenAI's limit, for clips and consent recordings
    cached_voices: int = 256  # in memory; that of a long clip takes some 100 kB
    orphan_age_s: float = 3600.0  # far longer than any upload takes from its file to its row
    busy_timeout_s: float = 10.0  # how long to wait for another process's transaction
    reserved_names: frozenset[str] = frozenset()  # names that uploads may not take, see `aliases.reserved_names`

    def __post_init__(self) -> None:
        if self.consent not in get_args(ConsentPolicy):
            raise ConfigError(f"consent must be one of {', '.join(get_args(ConsentPolicy))}, not {self.consent!r}")
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, int | float) and not value > 0:
                raise ConfigError(f"{f.name} must be over 0, not {value!r}")


@dataclass(frozen=True)
class VoiceRecord:
    """A voice without its tensors. All fields but the last are columns of the index."""

    id: str
    name: str
    created_at: int  # Unix seconds
    kind: str
    model: str  # the one that encoded it: only that one can speak with it
    family: str | None  # of that model; None in stores from before it was recorded
    consent_id: str | None
    consent_statement: str | None
    language: str | None
    clip_s: float | None
    file: str
    file_bytes: int
    clip_file: str | None
    broken: bool = False  # its file is missing or damaged: delete it and upload again


_COLUMNS = tuple(f.name for f in fields(VoiceRecord))[:-1]
_INSERT = f"INSERT INTO voices (name_key, {', '.join(_COLUMNS)}) VALUES (?{', ?' * len(_COLUMNS)})"


class VoiceStore:
    """Safe to use from any thread; holds nothing open between calls."""

    def __init__(self, folder: Path, options: StoreOptions | None = None, bucket: Bucket | None = None) -> None:
        """With a bucket the voices are kept there, and `folder` has copies of those that were used here."""
        self.options = o = options or StoreOptions()
        self._reserved = frozenset(label_key(name) for name in o.reserved_names)
        self.files: ContentFiles
        self.index: StoreIndex
        if bucket is None:
            self.files = ContentFiles(folder / "files")
            self.index = StoreIndex(folder / "index.sqlite", o.busy_timeout_s)
        else:
            self.files, self.index = BucketFiles(folder / "copies", bucket), BucketIndex(bucket, o.busy_timeout_s)
        self.consents = Consents(
            self.index,
            self.files,
            max_consents=o.max_consents,
            max_name_chars=o.max_name_chars,
            max_bytes=o.max_clip_bytes,
        )
        self.cache = VoiceCache(o.cached_voices)
        self._damaged: set[str] = set()  # files that failed their check here; a size alone would not tell
        try:
            make_folder(folder)
            make_folder(self.files.folder)
            self.index.open(self._check_unused)
            self.files.collect(self.index, o.orphan_age_s)
        except OSError as e:
            raise StoreError(f"the voice store cannot be opened in {folder}: {e.strerror}") from e

    def add(
        self,
        voice: Voice,
        name: str,
        consent_id: str | None = None,
        *,
        model: str,
        consent_statement: str | None = None,
        language: str | None = None,
        clip: bytes | None = None,
        clip_s: float | None = None,
    ) -> VoiceRecord:
        """Keep a voice, and the clip it was made from if given. On return it is durable and visible to all servers."""
        name = checked_label(name, self.options.max_name_chars)
        if label_key(name) in self._reserved:
            raise VoiceExists(f"the name {name!r} is the server's own; choose another")
        if language is not None:
            language = checked_language(language)
        if clip_s is not None and not (math.isfinite(clip_s) and clip_s > 0):
            raise BadRequest(f"clip_s must be a number of seconds, not {clip_s!r}")
        if clip is not None and len(clip) > self.options.max_clip_bytes:
            raise BadRequest(f"the clip is {len(clip):,} bytes; at most {self.options.max_clip_bytes:,} are kept")
        consent_statement = self._consent(consent_id, consent_statement)
        self.index.check_current()
        self.index.refresh()
        with self.index.reading() as db:  # Most refusals come here, before anything is written.
            self._admit(db, name, consent_id)
        with self.files.staging(self.index) as staging:
            file, file_bytes = staging.add("safetensors", lambda place: place.write_bytes(voice.to_bytes()))
            clip_file = None if clip is None else staging.add("clip", lambda path: path.write_bytes(clip))[0]
            record = VoiceRecord(
                id=f"voice_{secrets.token_hex(12)}",
                name=name,
                created_at=int(time.time()),
                kind="clone",
                model=model,
                family=voice.family,
                consent_id=consent_id,
                consent_statement=consent_statement,
                language=language,
                clip_s=clip_s,
                file=file,
                file_bytes=file_bytes,
                clip_file=clip_file,
            )
            with self.index.writing() as db:
                self._admit(db, name, consent_id)  # This is checked again, since other processes did not wait.
                staging.publish()
                db.execute(_INSERT, (label_key(name), *astuple(record)[:-1]))
        return record

    def get(self, id_or_name: str) -> VoiceRecord:
        """By id, or by name in any case. `UnknownVoice` if there is none."""
        if is_id(id_or_name, "voice"):
            column, key = "id", id_or_name
        else:
            try:
                column, key = "name_key", label_key(checked_label(id_or_name, self.options.max_name_chars))
            except BadRequest:  # No voice can have such a name.
                raise UnknownVoice(f"no uploaded voice {id_or_name[:64]!r}") from None
        row = self._row(column, key)
        if row is None and self.index.refresh():
            row = self._row(column, key)
        if row is None:
            raise UnknownVoice(f"no uploaded voice {id_or_name[:64]!r}")
        return self._record(row)

    def load(self, record: VoiceRecord) -> Voice:
        """The voice itself, from memory if it was used lately. `StoreError` if its file is missing or damaged, or
        cannot be read now."""
        try:
            voice = self.cache.get(record.file, lambda: Voice.load(self.files.path(record.file)))
        except (Lost, BadAudio) as e:
            self.get(record.id)  # UnknownVoice: another process deleted it, which is no damage.
            self._damaged.add(record.file)
            raise StoreError(
                f"the voice {record.name!r} ({record.id}) cannot be loaded: {e}; delete it and upload it again"
            ) from e
        self._damaged.discard(record.file)
        return voice

    def list(self) -> tuple[VoiceRecord, ...]:
        """All voices, oldest first."""
        self.index.refresh()
        with self.index.reading() as db:
            rows = db.execute(f"{self._select} ORDER BY seq").fetchall()
        return tuple(self._record(row) for row in rows)

    def delete(self, voice_id: str) -> None:
        """Delete by id only: a name may by now belong to another voice."""
        record = self.get(voice_id) if is_id(voice_id, "voice") else None
        if record is None:
            raise UnknownVoice(f"no uploaded voice has the id {voice_id[:64]!r}")
        with self.index.writing() as db:
            if not db.execute("DELETE FROM voices WHERE id = ?", (voice_id,)).rowcount:
                raise UnknownVoice(f"the voice {voice_id!r} was deleted by someone else just now")
        self.cache.drop(record.file)
        self._damaged.discard(record.file)
        self.files.release(self.index, {name for name in (record.file, record.clip_file) if name})

    def clip(self, record: VoiceRecord) -> Path | None:
        """The clip that the voice was made from, checked against its hash; None if it was not kept."""
        return None if record.clip_file is None else self.files.path(record.clip_file)

    def _row(self, column: str, key: str) -> sqlite3.Row | None:
        with self.index.reading() as db:
            row: sqlite3.Row | None = db.execute(f"{self._select} WHERE {column} = ?", (key,)).fetchone()
        return row

    @property
    def _select(self) -> str:
        """Version 1 of the index had no family, so NULL is selected in its place."""
        old = self.index.version == 1
        columns = ("NULL" if old and name == "family" else name for name in _COLUMNS)
        return f"SELECT {', '.join(columns)} FROM voices"

    def _consent(self, consent_id: str | None, statement: str | None) -> str | None:
        if statement is not None:
            statement = checked_statement(statement)
        if consent_id is not None:
            return statement
        if self.options.consent == "required":
            raise BadRequest("consent is required: give the id of a consent recording (POST /v1/audio/voice_consents)")
        if statement is None:
            raise BadRequest("consent is required: give a consent's id, or state that the speaker agreed")
        return statement

    def _admit(self, db: sqlite3.Connection, name: str, consent_id: str | None) -> None:
        """Raise if the voice may not be added. Under the write lock this is exact, whatever other processes do."""
        if consent_id is not None:
            self.consents.find(db, consent_id)
        if db.execute("SELECT 1 FROM voices WHERE name_key = ?", (label_key(name),)).fetchone():
            raise VoiceExists(f"there is a voice named {name!r}; choose another name, or delete that one first")
        if db.execute("SELECT count(*) FROM voices").fetchone()[0] >= self.options.max_voices:
            raise BadRequest(f"the store holds its {self.options.max_voices} voices; delete some first")

    def _record(self, row: sqlite3.Row) -> VoiceRecord:
        record = VoiceRecord(*row)
        intact = record.file not in self._damaged and self.files.intact(record.file, record.file_bytes)
        return record if intact else replace(record, broken=True)

    def _check_unused(self) -> None:
        if self.files.any_named():  # The index is made before any file, so it was lost; collecting would remove them.
            raise StoreError(
                f"{self.files.folder} holds voices but their index is gone: restore index.sqlite from a backup, "
                "or use another folder"
            )
