"""What we need of a hub: a repository's files and licence, and the transfer of a file. Its errors become ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from urllib.parse import urlsplit

from sonant.errors import ConfigError
from sonant.hub.checksum import git_blob_of, sha256_of
from sonant.hub.hub_error import HubError

PUBLIC = "https://huggingface.co"
_HEX = re.compile(r"[0-9a-f]+")
PARTIAL = ".partial"  # a folder in the checkpoint's, for files not yet complete


@dataclass(frozen=True)
class StoredFile:
    path: str
    size: int
    sha256: str | None  # None for a small file …
    blob: str | None  # … which is known by git's blob hash

    def __post_init__(self) -> None:
        """A path or a checksum becomes a place on disk: a mirror must not be able to name one outside the folder."""
        path = PurePosixPath(self.path)
        sums = [value for value in (self.sha256, self.blob) if value is not None]
        if path.is_absolute() or ".." in path.parts or not all(_HEX.fullmatch(value) for value in sums):
            raise HubError(f"the hub lists a file that cannot be one: {self.path!r} with the checksums {sums}")

    def part_in(self, folder: Path) -> Path:
        """Where the file grows until it is complete, under the name of its checksum."""
        return folder / PARTIAL / (self.sha256 or self.blob or self.path)

    def bytes_left(self, folder: Path) -> int:
        """Bytes that are still to be fetched into `folder`."""
        place, part = folder / self.path, self.part_in(folder)
        if place.is_file() and place.stat().st_size == self.size:
            return 0
        return max(0, self.size - part.stat().st_size) if part.exists() else self.size

    def is_at(self, place: Path) -> bool:
        if not place.is_file() or place.stat().st_size != self.size:
            return False
        return sha256_of(place) == self.sha256 if self.sha256 else git_blob_of(place) == self.blob


@dataclass(frozen=True)
class Repository:
    name: str
    revision: str  # the commit that all files are of, even if the repository moves on
    files: tuple[StoredFile, ...]
    licence: str  # as its card states it


class Hub:
    def __init__(self, endpoint: str | None = None) -> None:
        """`endpoint` is a mirror's address; None: the public hub."""
        try:
            import huggingface_hub
        except ModuleNotFoundError as e:
            raise ConfigError(f"downloading needs {e.name}; install it with: pip install 'sonant[hub]'") from e
        self._library = huggingface_hub
        self.endpoint = (endpoint or PUBLIC).rstrip("/")

    def look(self, name: str) -> Repository:
        with self._errors(name):
            info = self._library.HfApi(endpoint=self.endpoint).model_info(name, files_metadata=True)
        files = tuple(
            StoredFile(s.rfilename, s.size or 0, s.lfs.sha256 if s.lfs else None, s.blob_id)
            for s in info.siblings or ()
        )
        if not info.sha or not files:
            raise HubError(f"{name} at {self.endpoint} is empty")
        return Repository(name, info.sha, files, _licence(info.card_data))

    def fetch(self, repository: Repository, file: StoredFile, folder: Path) -> None:
        """Fetch the file to its path under `folder`, replacing what is there.

        It grows in `PARTIAL`, so that a later run resumes where this one ends, and is moved once it is complete and
        its checksum right. (The library's own download keeps nothing of a transfer that it gave up.)
        """
        place, part = folder / file.path, file.part_in(folder)
        for path in (place, part):
            path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors(repository.name):
            self._transfer(repository, file, part)
        if file.is_at(part):
            part.replace(place)
        else:
            part.unlink()
            raise HubError(
                f"{file.path} of {repository.name} arrived damaged: its checksum differs from the hub's. It has been "
                "removed; run the same command again"
            )

    def _transfer(self, repository: Repository, file: StoredFile, part: Path) -> None:
        from huggingface_hub.file_download import http_get

        library = self._library
        url = library.hf_hub_url(repository.name, file.path, revision=repository.revision, endpoint=self.endpoint)
        found = library.get_hf_file_metadata(url, endpoint=self.endpoint)
        headers = _headers(library, keep_token=_host(found.location) == _host(url))
        there = part.stat().st_size if part.exists() else 0
        with part.open("ab" if there < file.size else "wb") as out:
            http_get(
                found.location, out, resume_size=out.tell(), headers=headers, expected_size=file.size,
                displayed_filename=file.path,
            )  # fmt: skip

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        from huggingface_hub import errors

        try:
            yield
        except errors.GatedRepoError as e:
            raise HubError(
                f"{name} is gated: accept its terms at {self.endpoint}/{name}, then log in with `hf auth login` or set "
                "HF_TOKEN"
            ) from e
        except errors.RepositoryNotFoundError as e:
            raise HubError(
                f"there is no repository {name} at {self.endpoint}, or it is private: check the name; for a private "
                "one log in with `hf auth login` or set HF_TOKEN"
            ) from e
        except errors.HfHubHTTPError as e:
            raise HubError(f"{self.endpoint} answered {e.response.status_code} for {name}: {_first_line(e)}") from e
        except errors.HFValidationError as e:
            raise HubError(f"{name} is not a repository's name: {_first_line(e)}") from e
        except (errors.HTTPError, OSError) as e:  # of the library's transport, whichever it uses
            raise HubError(
                f"{name} cannot be fetched from {self.endpoint}: {_first_line(e)}. Is there a network? What was "
                "fetched so far is kept; run the same command again to continue"
            ) from e


def _headers(library: ModuleType, *, keep_token: bool) -> dict[str, str]:
    """The headers of a download; without the token where another host stores the file, since its address is signed."""
    headers: dict[str, str] = library.utils.build_hf_headers()
    return headers if keep_token else {name: v for name, v in headers.items() if name.lower() != "authorization"}


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _licence(card: object) -> str:
    """As the card states it, with name and link if the licence is not a common one."""
    parts = [getattr(card, field, None) for field in ("license", "license_name", "license_link")]
    return ", ".join(str(part) for part in parts if part) or "not stated"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
