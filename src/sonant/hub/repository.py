"""A hub as we use it: what a repository holds, under which licence, and one file of it. Its errors become ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

from sonant.errors import ConfigError
from sonant.hub.checksum import git_blob_of, sha256_of
from sonant.hub.hub_error import HubError

PUBLIC = "https://huggingface.co"
PARTIAL = ".partial"  # a folder in the checkpoint's, for files on their way


@dataclass(frozen=True)
class StoredFile:
    path: str
    size: int
    sha256: str | None  # of a large file …
    blob: str | None  # … and what git calls a small one's content

    def part_in(self, folder: Path) -> Path:
        """Where it grows until it is whole, under the name of its checksum."""
        return folder / PARTIAL / (self.sha256 or self.blob or self.path)

    def bytes_left(self, folder: Path) -> int:
        """That are still to be fetched into `folder`."""
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
    revision: str  # the commit: all files are of the same one, though the repository goes on
    files: tuple[StoredFile, ...]
    licence: str  # as its card has it


class Hub:
    def __init__(self, endpoint: str | None = None) -> None:
        """`endpoint` is where a mirror answers; None: the public one."""
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
        """Into the same place under `folder`, whatever is there.

        It grows in `PARTIAL`, so that a later run goes on where this one ends, and is moved when it is whole and
        right. (The library's own download keeps nothing of a transfer that it gave up.)
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
                f"{file.path} of {repository.name} came damaged: its checksum is not the one that the hub has for it. "
                "It has been removed; run the same command again"
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
        except (errors.HTTPError, OSError) as e:  # of the library's transport, whichever it is
            raise HubError(
                f"{name} cannot be fetched from {self.endpoint}: {_first_line(e)}. Is there a network? What has come "
                "so far is kept: the same command goes on from there"
            ) from e


def _headers(library: ModuleType, *, keep_token: bool) -> dict[str, str]:
    """A signed address of a storage elsewhere is not told who asks."""
    headers: dict[str, str] = library.utils.build_hf_headers()
    return headers if keep_token else {name: v for name, v in headers.items() if name.lower() != "authorization"}


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _licence(card: object) -> str:
    """The card's word for it, with its name and place where it is not a common one."""
    parts = [getattr(card, field, None) for field in ("license", "license_name", "license_link")]
    return ", ".join(str(part) for part in parts if part) or "not stated"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
