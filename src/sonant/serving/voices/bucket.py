"""An S3-compatible bucket as the voice store needs it: whole objects, and writes that succeed only if nothing changed.

Conditional writes (`If-Match`, `If-None-Match`) are what keeps many servers from overwriting each other without a
database; S3 has them since 2024, and so have MinIO, Ceph and R2.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sonant.errors import ConfigError, StoreError

_CHANGED = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
_ABSENT = {"NoSuchKey", "404", "NotFound"}
_SAME = {"304", "NotModified"}


class Changed(Exception):
    """The object is no longer the one expected, or there is one by now."""


class Bucket:
    """Safe to use from any thread."""

    def __init__(self, url: str) -> None:
        """`url`: `s3://bucket/prefix`. Endpoint and credentials come from the environment, as for all AWS clients:
        AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, a role …
        """
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc or parts.query:
            raise ConfigError(f"voices_url must be s3://BUCKET or s3://BUCKET/PREFIX, not {url!r}")
        try:
            import s3fs
        except ImportError:
            raise ConfigError("voices in a bucket need s3fs; install it with: pip install 'sonant[s3]'") from None
        self.name, self.prefix = parts.netloc, parts.path.strip("/")
        self._s3 = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)

    def get(self, key: str, unless: str | None = None) -> tuple[bytes, str] | None:
        """The object's content and tag; None if there is no object. Raises `Same` if it still has the tag `unless`."""
        more = {} if unless is None else {"IfNoneMatch": unless}
        with _told(key):
            try:
                found = self._call("get_object", key, **more)
                return self._read(found["Body"]), found["ETag"]
            except Exception as e:
                if _code(e) in _ABSENT:
                    return None
                if _code(e) in _SAME:
                    raise Same from None
                raise

    def tag(self, key: str) -> str | None:
        with _told(key):
            try:
                return str(self._call("head_object", key)["ETag"])
            except Exception as e:
                if _code(e) in _ABSENT:
                    return None
                raise

    def put(self, key: str, data: bytes, *, match: str | None = None, absent: bool = False) -> str:
        """Write the object whole → its tag. With `match` only over one with that tag, with `absent` only if there is
        none, else raise `Changed`."""
        more = ({} if match is None else {"IfMatch": match}) | ({"IfNoneMatch": "*"} if absent else {})
        with _told(key):
            try:
                return str(self._call("put_object", key, Body=data, **more)["ETag"])
            except Exception as e:
                if more and _code(e) in _CHANGED | _ABSENT:
                    raise Changed from None
                raise

    def delete(self, key: str) -> None:
        with _told(key):
            self._call("delete_object", key)

    def ages(self, folder: str) -> dict[str, float]:
        """Names below a folder, with how many seconds ago each was written."""
        with _told(folder):
            path = f"{self.name}/{self._key(folder)}"
            try:
                listed = self._s3.ls(path, detail=True, refresh=True)
            except FileNotFoundError:
                return {}
            now = datetime.now(UTC)
            files = [entry for entry in listed if entry["type"] == "file"]
            return {e["name"].rpartition("/")[2]: (now - e["LastModified"]).total_seconds() for e in files}

    def _call(self, method: str, key: str, **arguments: Any) -> Any:
        return self._s3.call_s3(method, Bucket=self.name, Key=self._key(key), **arguments)

    def _read(self, body: Any) -> bytes:
        from fsspec.asyn import sync

        return bytes(sync(self._s3.loop, body.read))

    def _key(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key


class Same(Exception):
    """The object is the one that the caller already has."""


def keep_copy(path: Path, content: bytes) -> None:
    """Write a copy of an object: whole, or not at all."""
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as e:
        with suppress(OSError):
            part.unlink()
        raise StoreError(f"no copy of {path.name} in the bucket of voices can be kept here: {e.strerror or e}") from e


@contextmanager
def _told(key: str) -> Iterator[None]:
    try:
        yield
    except (Changed, Same):
        raise
    except Exception as e:  # botocore's and aiohttp's errors have no base in common
        raise StoreError(f"the bucket of voices cannot be used ({key}): {type(e).__name__}: {e}") from e


def _code(error: BaseException) -> str:
    """S3's own error code, which s3fs keeps in the cause of what it raises."""
    for found in (error, error.__cause__):
        response = getattr(found, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    if isinstance(error, FileNotFoundError):
        return "404"
    if isinstance(error, FileExistsError):
        return "412"
    return "304" if "(304)" in str(error) else ""
