"""Recordings in which a speaker agrees to be cloned, in the shape of OpenAI's voice consents."""

from __future__ import annotations

import secrets
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from sonant.errors import BadRequest, UnknownConsent, VoiceExists
from sonant.serving.voices.content_files import ContentFiles
from sonant.serving.voices.labels import checked_label, checked_language
from sonant.serving.voices.store_index import StoreIndex

_COLUMNS = "id, name, language, created_at, recording"


@dataclass(frozen=True)
class ConsentRecord:
    id: str
    name: str
    language: str
    created_at: int  # Unix seconds
    recording: str  # file name


class Consents:
    """Part of a `VoiceStore`, which makes it."""

    def __init__(
        self, index: StoreIndex, files: ContentFiles, *, max_consents: int, max_name_chars: int, max_bytes: int
    ) -> None:
        self.index, self.files = index, files
        self.max_consents, self.max_name_chars, self.max_bytes = max_consents, max_name_chars, max_bytes

    def add(self, recording: bytes, language: str, name: str) -> ConsentRecord:
        """Keep a recording; durable on return. The caller checks that it is sound, and that it says what it should."""
        name = checked_label(name, self.max_name_chars)
        language = checked_language(language)
        if not recording:
            raise BadRequest("the consent recording is empty")
        if len(recording) > self.max_bytes:
            raise BadRequest(f"the consent recording is {len(recording):,} bytes; at most {self.max_bytes:,} are kept")
        self.index.refresh()
        with self.index.reading() as db:
            self._check_room(db)
        with self.files.staging(self.index) as staging:
            file, _ = staging.add("recording", lambda path: path.write_bytes(recording))
            record = ConsentRecord(f"cons_{secrets.token_hex(12)}", name, language, int(time.time()), file)
            with self.index.writing() as db:
                self._check_room(db)
                staging.publish()
                db.execute(
                    f"INSERT INTO consents ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
                    (record.id, record.name, record.language, record.created_at, record.recording),
                )
        return record

    def get(self, consent_id: str) -> ConsentRecord:
        self.index.refresh()
        with self.index.reading() as db:
            return self.find(db, consent_id)

    def list(self, *, after: str | None = None, limit: int | None = None) -> tuple[ConsentRecord, ...]:
        """Oldest first; `after` is the last id of the page before."""
        self.index.refresh()
        with self.index.reading() as db:
            start = 0
            if after is not None:
                self.find(db, after)
                start = db.execute("SELECT seq FROM consents WHERE id = ?", (after,)).fetchone()[0]
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM consents WHERE seq > ? ORDER BY seq LIMIT ?",
                (start, -1 if limit is None else limit),
            ).fetchall()
        return tuple(ConsentRecord(*row) for row in rows)

    def rename(self, consent_id: str, name: str) -> ConsentRecord:
        name = checked_label(name, self.max_name_chars)
        with self.index.writing() as db:
            self.find(db, consent_id)
            db.execute("UPDATE consents SET name = ? WHERE id = ?", (name, consent_id))
            return self.find(db, consent_id)

    def delete(self, consent_id: str) -> None:
        """Delete a consent. Refused while voices were made with it: they would be left without the speaker's word."""
        with self.index.writing() as db:
            record = self.find(db, consent_id)
            rows = db.execute("SELECT id FROM voices WHERE consent_id = ? LIMIT 4", (consent_id,)).fetchall()
            if rows:
                named = ", ".join(row["id"] for row in rows[:3]) + (" …" if len(rows) > 3 else "")
                raise VoiceExists(f"voices were made with this consent ({named}); delete them first")
            db.execute("DELETE FROM consents WHERE id = ?", (consent_id,))
        self.files.release(self.index, {record.recording})

    def recording(self, record: ConsentRecord) -> Path:
        """The recording's file, checked against its hash."""
        return self.files.path(record.recording)

    def find(self, db: sqlite3.Connection, consent_id: str) -> ConsentRecord:
        """Within a transaction; `UnknownConsent` if there is none."""
        row = None
        if isinstance(consent_id, str) and consent_id.isascii():
            row = db.execute(f"SELECT {_COLUMNS} FROM consents WHERE id = ?", (consent_id,)).fetchone()
        if row is None:
            shown = repr(consent_id[:64]) if isinstance(consent_id, str) else type(consent_id).__name__
            raise UnknownConsent(f"no consent {shown}; make one first (POST /v1/audio/voice_consents)")
        return ConsentRecord(*row)

    def _check_room(self, db: sqlite3.Connection) -> None:
        if db.execute("SELECT count(*) FROM consents").fetchone()[0] >= self.max_consents:
            raise BadRequest(f"the store holds its {self.max_consents} consents; delete some first")
