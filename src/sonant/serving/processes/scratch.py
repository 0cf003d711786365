"""A folder for what a server's processes share while it runs: the channel's socket, and files of counters.

It is removed with the server. If a server was killed, the next one removes its folder, since the process id in the
folder's name tells that nobody uses it any more.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sonant.errors import ConfigError

_SOCKET_BYTES = 107 if sys.platform == "linux" else 103  # of a socket's whole path; the system has no room for more
_MOST_BYTES = _SOCKET_BYTES - len("/engine-99")
_NAME = re.compile(r"sonant-(\d+)-\w+")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that only this user can open. `ConfigError` if no socket could be in it."""
    place = tempfile.gettempdir()
    remove_stale(Path(place))
    with tempfile.TemporaryDirectory(prefix=f"sonant-{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        if len(os.fsencode(folder)) > _MOST_BYTES:
            raise ConfigError(
                f"the folder for temporary files, {place}, has too long a path for sockets; set TMPDIR to a shorter one"
            )
        yield Path(folder)


def remove_stale(place: Path) -> None:
    for folder in place.glob("sonant-*-*"):
        found = _NAME.fullmatch(folder.name)
        if found is not None and not _alive(int(found[1])):
            shutil.rmtree(folder, ignore_errors=True)  # another user's stays


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no process has a number of so many digits
        return False
    except PermissionError:
        pass
    return True
