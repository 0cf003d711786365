"""Uploaded voices and consents: kept, found, limited, and never made into paths by their names."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.voice_stores import store_in
from sonant.errors import BadRequest, ConfigError, UnknownConsent, UnknownVoice, VoiceExists
from sonant.serving.voices.voice_store import StoreOptions, VoiceRecord, VoiceStore
from sonant.voice import Voice

HOSTILE = [
    "",
    " ",
    ".",
    "..",
    "../../x",
    "/etc/passwd",
    "..\\x",
    "C:x",
    "a/b",
    "-rf",
    ".hidden",
    "nul\0byte",
    "line\nbreak",
    "tab\there",
    "x" * 10_000,
    "smile 🙂",
    "Anna\u200d",
    "Anna\ufe0f",
    "Anna\u3164",
    "right\u202eleft",
    "lone \ud800",
    "'; DROP TABLE voices; --",
    'a" OR "1"="1',
    "a%",
    "{}",
    "voice_0123456789abcdef01234567",
    "CONS_0123456789abcdef01234567",
]


def voice(seed: int = 0) -> Voice:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 99, (20, 16), dtype=np.int32)
    return Voice({"embedding": rng.standard_normal(64, dtype=np.float32), "codes": codes}, f"text {seed}", family="f")


def put(store: VoiceStore, name: str = "Anna", seed: int = 0, **fields: Any) -> VoiceRecord:
    return store.add(voice(seed), name, **{"model": "m", "consent_statement": "she agreed", **fields})


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    return store_in(tmp_path / "voices")


def test_a_voice_comes_back_as_it_was(store: VoiceStore) -> None:
    record = put(store, "Anna Müller", 3, language="de", clip=b"RIFF", clip_s=4.5)
    assert store.get(record.id) == record == store.get("anna MU\u0308LLER")
    assert (record.kind, record.model, record.family, record.clip_s) == ("clone", "m", "f", 4.5)
    assert record.consent_statement == "she agreed"
    again = store.load(record)
    assert (again.fingerprint, again.text) == (voice(3).fingerprint, "text 3")
    clip = store.clip(record)
    assert clip is not None and clip.read_bytes() == b"RIFF"


def test_a_restarted_server_has_the_same_voices(tmp_path: Path) -> None:
    first = store_in(tmp_path)
    records = [put(first, f"v{i}", i) for i in range(5)]
    second = store_in(tmp_path)
    assert list(second.list()) == records
    assert [second.load(r).fingerprint for r in records] == [voice(i).fingerprint for i in range(5)]


def test_a_new_store_is_closed_to_other_users(store: VoiceStore, tmp_path: Path) -> None:
    assert (tmp_path / "voices").stat().st_mode & 0o077 == 0


def test_deleting_takes_the_files_along_unless_another_voice_has_the_same(store: VoiceStore) -> None:
    one, two = put(store, "one", 1, clip=b"same clip"), put(store, "two", 2, clip=b"same clip")
    store.delete(one.id)
    with pytest.raises(UnknownVoice):
        store.get("one")
    assert {p.name for p in store.files.folder.iterdir()} == {two.file, two.clip_file}
    store.delete(two.id)
    assert not any(store.files.folder.iterdir())
    for unknown in (two.id, "two", "../x", "", "\ud800"):
        with pytest.raises(UnknownVoice):
            store.delete(unknown)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused_and_finds_nothing(store: VoiceStore, tmp_path: Path, name: str) -> None:
    kept = put(store)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadRequest, match="name"):
        put(store, name)
    with pytest.raises(BadRequest, match="name"):
        store.consents.add(b"RIFF", "en", name)
    with pytest.raises(UnknownVoice):
        store.get(name)
    with pytest.raises(UnknownConsent):
        store.consents.get(name)
    assert sorted(tmp_path.rglob("*")) == before
    assert store.list() == (kept,)


@pytest.mark.parametrize("name", ["Anna", "Ünal-2", "小明", "अनीता", "Dr. No_2", "7 of 9", "x" * 64])
def test_names_of_all_scripts_are_welcome_and_no_part_of_a_path(store: VoiceStore, tmp_path: Path, name: str) -> None:
    assert store.get(put(store, f" {name} " if len(name) < 60 else name).name).name == name
    assert not [p for p in tmp_path.rglob("*") if name in p.name]


@pytest.mark.parametrize("same", ["Anna", "ANNA", " anna ", "Ａnna"])
def test_a_name_that_reads_the_same_is_a_conflict(store: VoiceStore, same: str) -> None:
    put(store)
    with pytest.raises(VoiceExists, match="choose another name"):
        put(store, same, 2)
    assert len(store.list()) == 1


def test_a_name_that_means_something_already_is_a_conflict(tmp_path: Path) -> None:
    store = store_in(tmp_path, reserved_names=frozenset({"Alloy"}))
    with pytest.raises(VoiceExists, match="the server's own"):
        put(store, "alloy")


def test_limits_hold(tmp_path: Path) -> None:
    store = store_in(tmp_path, max_voices=2, max_consents=1, max_clip_bytes=10)
    put(store, "one")
    with pytest.raises(BadRequest, match="11 bytes"):
        put(store, "two", clip=b"x" * 11)
    with pytest.raises(BadRequest, match="11 bytes"):
        store.consents.add(b"x" * 11, "en", "Anna")
    second = put(store, "two")
    with pytest.raises(BadRequest, match="holds its 2 voices"):
        put(store, "three")
    store.delete(second.id)
    put(store, "three")
    store.consents.add(b"x", "en", "Anna")
    with pytest.raises(BadRequest, match="holds its 1 consents"):
        store.consents.add(b"x", "en", "Bert")


@pytest.mark.parametrize("options", [{"consent": "none"}, {"max_voices": 0}, {"busy_timeout_s": float("nan")}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        StoreOptions(**options)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"language": "../x"}, "language"),
        ({"language": "e" * 99}, "language"),
        ({"clip_s": float("nan")}, "clip_s"),
        ({"consent_statement": " "}, "in words"),
        ({"consent_statement": "x" * 9999}, "2000 characters"),
        ({"consent_statement": "a\0b"}, "printable"),
        ({"consent_statement": None}, "consent is required"),
        ({"consent_id": "cons_0123456789abcdef01234567"}, "no consent 'cons_"),
        ({"consent_id": "\ud800"}, "no consent"),
    ],
)
def test_bad_fields_are_refused(store: VoiceStore, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        put(store, **fields)
    assert store.list() == () and not any(store.files.folder.iterdir())


def test_where_consent_is_required_a_statement_is_not_enough(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    with pytest.raises(BadRequest, match="consent recording"):
        put(store)
    consent = store.consents.add(b"RIFF I agree", "en-US", "Anna")
    record = put(store, consent_id=consent.id, consent_statement=None)
    assert record.consent_id == consent.id


def test_consents_are_kept_listed_renamed_and_deleted(tmp_path: Path) -> None:
    first = VoiceStore(tmp_path).consents
    made = [first.add(b"RIFF %d" % i, "en-US", "Anna") for i in range(5)]
    consents = VoiceStore(tmp_path).consents
    assert list(consents.list()) == made
    assert list(consents.list(after=made[1].id, limit=2)) == made[2:4]
    assert consents.recording(consents.get(made[3].id)).read_bytes() == b"RIFF 3"
    assert consents.rename(made[0].id, "Anna M.").name == "Anna M."
    consents.delete(made[0].id)
    with pytest.raises(UnknownConsent, match="voice_consents"):
        consents.get(made[0].id)
    with pytest.raises(UnknownConsent):
        consents.list(after=made[0].id)
    assert len(list(consents.files.folder.iterdir())) == 4


def test_a_consent_that_voices_rest_on_stays(store: VoiceStore) -> None:
    consent = store.consents.add(b"RIFF", "en", "Anna")
    record = put(store, consent_id=consent.id)
    with pytest.raises(VoiceExists, match=record.id):
        store.consents.delete(consent.id)
    store.delete(record.id)
    store.consents.delete(consent.id)
    assert not any(store.files.folder.iterdir())


def test_threads_load_the_right_voices_through_a_small_cache(tmp_path: Path) -> None:
    store = store_in(tmp_path, cached_voices=4)
    records = [put(store, f"v{i}", i) for i in range(12)]
    wanted = [voice(i).fingerprint for i in range(12)]

    def use(n: int) -> bool:
        i = n * 7 % 12 if n % 2 else 0
        return store.load(store.get(f"v{i}")).fingerprint == wanted[i] and len(store.cache) <= 4

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(400)))
    assert store.cache.hits + store.cache.misses == 400
    assert store.cache.hits > 100
    assert store.load(records[11]) is store.load(records[11])


def test_a_deleted_voice_leaves_the_cache(store: VoiceStore) -> None:
    record = put(store)
    store.load(record)
    store.delete(record.id)
    assert len(store.cache) == 0
