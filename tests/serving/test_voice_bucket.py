"""Voices in an S3-compatible bucket, tested against moto's local server, which speaks that protocol."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from serving.conftest import wait_for
from serving.voice_stores import files_of, put
from sonant.errors import ConfigError, StoreError, UnknownVoice, VoiceExists
from sonant.serving.options import ServeOptions
from sonant.serving.voices import bucket_index
from sonant.serving.voices.bucket import Bucket, Changed, Same
from sonant.serving.voices.bucket_index import LEASE
from sonant.serving.voices.voice_store import StoreOptions, VoiceStore

needs_server = pytest.mark.skipif(
    find_spec("moto") is None or find_spec("s3fs") is None, reason="moto's server or s3fs is not installed"
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_DEFAULT_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
        ):  # fmt: skip
            patch.setenv(name, value)
        yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    import s3fs

    s3 = s3fs.S3FileSystem(skip_instance_cache=True)
    if not s3.exists("voices"):
        s3.mkdir("voices")
    return f"s3://voices/{request.node.name.replace('[', '-').replace(']', '')}"


def opened(url: str, folder: Path, **options: object) -> VoiceStore:
    return VoiceStore(folder, StoreOptions(**{"consent": "asserted", **options}), Bucket(url))  # type: ignore[arg-type]


@needs_server
def test_what_one_server_has_acknowledged_all_others_speak_at_once(url: str, tmp_path: Path) -> None:
    here, there = opened(url, tmp_path / "here"), opened(url, tmp_path / "there")
    made = put(here, "Anna", clip=b"RIFF clip")
    found = there.get("anna")
    assert found == made and there.list() == (made,)
    assert there.load(found).tensors.keys() == {"embedding"}
    clip = there.clip(found)
    assert clip is not None and clip.read_bytes() == b"RIFF clip"
    with pytest.raises(VoiceExists):
        put(there, "ANNA")
    there.delete(made.id)
    time.sleep(bucket_index.FRESH_S)
    with pytest.raises(UnknownVoice):
        here.get("anna")
    assert here.list() == () and Bucket(url).ages("files") == {}


@needs_server
def test_an_upload_is_judged_by_what_others_have_written_by_now(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A speaker's consent, the upload that rests on it, and a deletion may each reach another server."""
    monkeypatch.setattr(bucket_index, "FRESH_S", 60.0)
    here, there = opened(url, tmp_path / "here"), opened(url, tmp_path / "there", max_consents=1)
    consent = here.consents.add(b"RIFF yes", "en", "mine")
    made = put(there, "Bea", consent_id=consent.id)
    here.delete(made.id)
    here.consents.delete(consent.id)
    put(there, "Bea", consent_id=there.consents.add(b"RIFF yes", "en", "mine").id)


@needs_server
def test_a_server_that_is_new_finds_all_that_was_kept(url: str, tmp_path: Path) -> None:
    first = opened(url, tmp_path / "first")
    consent = first.consents.add(b"RIFF yes", "en", "mine")
    made = put(first, "Bea", consent_id=consent.id)
    later = opened(url, tmp_path / "later")
    assert later.get(made.id) == made and later.consents.get(consent.id) == consent
    with pytest.raises(VoiceExists, match="voices were made"):
        later.consents.delete(consent.id)


@needs_server
def test_many_writers_give_no_name_twice_and_lose_nothing(url: str, tmp_path: Path) -> None:
    stores = [opened(url, tmp_path / str(n), busy_timeout_s=60.0) for n in range(3)]
    outcomes: list[str] = []

    def work(store: VoiceStore) -> None:
        for n in range(4):
            try:
                put(store, f"Voice {n}")
                outcomes.append("made")
            except VoiceExists:
                outcomes.append("exists")

    threads = [threading.Thread(target=work, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(outcomes) == ["exists"] * 8 + ["made"] * 4
    assert [sorted(r.name for r in store.list()) for store in stores] == [[f"Voice {n}" for n in range(4)]] * 3


@needs_server
def test_a_lease_that_was_left_behind_is_taken_over(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(url, tmp_path)
    store.index.bucket.put(LEASE, b"of one that was killed")  # type: ignore[attr-defined]
    monkeypatch.setattr(bucket_index, "LEASE_S", 0.3)
    put(store, "Cleo")
    assert store.index.bucket.tag(LEASE) is None  # type: ignore[attr-defined]


@needs_server
def test_who_lost_the_lease_loses_the_change_and_is_told(url: str, tmp_path: Path) -> None:
    late, other = opened(url, tmp_path / "late"), opened(url, tmp_path / "other")
    with pytest.raises(StoreError, match="same time"), late.index.writing() as db:
        late.index.bucket.delete(LEASE)  # type: ignore[attr-defined]
        made = put(other, "Dora")
        db.execute("DELETE FROM voices")
    assert late.list() == (made,) and other.list() == (made,)


@needs_server
def test_who_lost_the_lease_to_one_who_only_removed_files_loses_the_change_too(url: str, tmp_path: Path) -> None:
    """Else a voice could be kept whose file is gone: of a clip that was deleted there and uploaded again here."""
    late, other = opened(url, tmp_path / "late"), opened(url, tmp_path / "other")
    bucket, name = Bucket(url), f"{'0' * 64}.clip"
    with pytest.raises(StoreError, match="same time"), late.index.writing():
        bucket.put(f"files/{name}", b"published")
        bucket.delete(LEASE)
        other.files.release(other.index, {name})
    assert bucket.ages("files") == {}


@needs_server
def test_a_write_whose_answer_was_lost_counts_as_done(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3's client then writes again by itself, and learns that the object has changed: by its own first write."""
    store = opened(url, tmp_path / "here")

    def put_twice(bucket: Bucket, key: str, data: bytes, **condition: object) -> str:
        tag = real(bucket, key, data, **condition)  # type: ignore[arg-type]
        return real(bucket, key, data, **condition) if condition else tag  # type: ignore[arg-type]

    real = Bucket.put
    monkeypatch.setattr(Bucket, "put", put_twice)
    began_s = time.monotonic()
    made = put(store, "Fay")
    assert store.get("fay") == made and time.monotonic() - began_s < bucket_index.LEASE_S / 2
    store.delete(made.id)
    assert opened(url, tmp_path / "there").list() == ()


@needs_server
def test_what_a_crash_left_behind_is_collected_and_a_damaged_copy_is_fetched_again(url: str, tmp_path: Path) -> None:
    store = opened(url, tmp_path)
    made = put(store, "Eve")
    bucket = Bucket(url)
    bucket.put(f"files/{'0' * 64}.clip", b"nobody's")
    (store.files.folder / made.file).write_bytes(b"damaged")
    again = opened(url, tmp_path, orphan_age_s=0.001)
    assert set(bucket.ages("files")) == {made.file}
    again.load(again.get("eve"))
    assert not again.get("eve").broken


@needs_server
def test_copies_of_what_another_server_deleted_are_collected(url: str, tmp_path: Path) -> None:
    here, there = opened(url, tmp_path / "here"), opened(url, tmp_path / "there")
    kept, gone = put(here, "Gus"), put(here, "Hal", clip=b"RIFF Hal")
    for made in (kept, gone):
        there.load(made)
    there.clip(gone)
    assert len(files_of(there)) == 3
    here.delete(gone.id)
    (there.files.folder / ".0123456789abcdef.part").write_bytes(b"of an upload that was killed")
    for name in files_of(there) - {kept.file}:
        os.utime(there.files.folder / name, (0, 0))
    assert files_of(opened(url, tmp_path / "there")) == {kept.file}


@needs_server
def test_what_others_keep_in_the_bucket_is_left_alone(url: str, tmp_path: Path) -> None:
    bucket = Bucket(url)
    bucket.put("files/report.pdf", b"somebody's")
    store = opened(url, tmp_path / "here")
    made = put(store, "Ida")
    bucket.put(f"files/{'0' * 64}.clip", b"nobody's")
    wait_for(lambda: min(bucket.ages("files").values()) > 0.01)
    opened(url, tmp_path / "there", orphan_age_s=0.001)
    assert set(bucket.ages("files")) == {made.file, "report.pdf"}


@needs_server
def test_a_voice_is_not_damaged_when_the_bucket_cannot_be_reached(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = put(opened(url, tmp_path / "here"), "Jo")
    there = opened(url, tmp_path / "there")
    real = Bucket.get

    def without_files(bucket: Bucket, key: str, unless: str | None = None) -> object:
        if key.startswith("files/"):
            raise StoreError("the bucket of voices cannot be used: timed out")
        return real(bucket, key, unless)

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "get", without_files)
        with pytest.raises(StoreError, match=r"timed out$"):
            there.load(made)
    assert not there.get("jo").broken and there.load(made).text == "Jo"


@needs_server
def test_a_full_disk_for_copies_is_told_and_keeps_no_part(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = opened(url, tmp_path / "there")
    made = put(opened(url, tmp_path / "here"), "Kim")
    real = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        real(path, data[:5])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        for use in (lambda: there.load(made), there.list, lambda: there.delete(made.id)):
            with pytest.raises(StoreError, match="No space left"):
                use()
    assert files_of(there) == set() and there.load(made).text == "Kim"
    assert not list(there.index.path.parent.glob(".*"))


@needs_server
def test_a_write_that_rests_on_what_has_changed_is_refused(url: str) -> None:
    bucket = Bucket(url)
    tag = bucket.put("a", b"1", absent=True)
    with pytest.raises(Changed):
        bucket.put("a", b"2", absent=True)
    newer = bucket.put("a", b"2", match=tag)
    with pytest.raises(Changed):
        bucket.put("a", b"3", match=tag)
    with pytest.raises(Same):
        bucket.get("a", unless=newer)
    assert bucket.get("a", unless=tag) == (b"2", newer)
    assert bucket.get("b") is None and bucket.tag("b") is None
    with pytest.raises(Changed):
        bucket.put("b", b"1", match=tag)


@needs_server
def test_no_bucket_there_is_told_as_such(server: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="bucket of voices"):
        opened("s3://nobodys-bucket", tmp_path)


@pytest.mark.parametrize("url", ["voices", "s3://", "gs://voices", "s3://voices?x=1"])
def test_what_is_no_bucket_is_refused_by_name(url: str) -> None:
    with pytest.raises(ConfigError, match="voices_url must be"):
        Bucket(url)


def test_a_bucket_needs_a_folder_for_copies() -> None:
    with pytest.raises(ConfigError, match="--voices DIR"):
        ServeOptions(voices_url="s3://voices")
