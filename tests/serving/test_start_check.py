"""What can never work ends `sonant serve` with exit code 2 and one line, before anything is loaded."""

from __future__ import annotations

import errno
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sonant import load
from sonant.cli.main import main
from sonant.errors import (
    BadText,
    CheckpointError,
    ConfigError,
    EngineError,
    Overloaded,
    StoreError,
    Unsupported,
    is_permanent,
)
from sonant.serving.options import ServeOptions
from sonant.serving.processes.shared_port import bound
from sonant.serving.start_check import check_start, folder_problem, is_public, page_address, port_problem

Folders = Mapping[str, Path]


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def served(capsys: pytest.CaptureFixture[str], *args: str | Path) -> str:
    assert main(["serve", *map(str, args)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("sonant: ") and told.err.count("\n") == 1
    return told.err


def test_what_is_there_to_stay() -> None:
    for error in (
        ConfigError("no CUDA"),
        CheckpointError("cut short"),
        StoreError("damaged"),
        ModuleNotFoundError("fastapi"),
        OSError(errno.EADDRINUSE, "in use"),
        FileNotFoundError(errno.ENOENT, "gone"),
        PermissionError(errno.EACCES, "not yours"),
    ):
        assert is_permanent(error), error
    for passing in (
        EngineError("a step failed"),
        Overloaded("later"),
        torch.OutOfMemoryError("another process has it"),
        RuntimeError("driver"),
        OSError(errno.EIO, "disk"),
        OSError(errno.ENOSPC, "full"),
        ConnectionResetError(errno.ECONNRESET, "gone"),
        BadText("empty"),
        Unsupported("a request's own fault"),
        KeyboardInterrupt(),
    ):
        assert not is_permanent(passing), passing


def test_a_device_that_is_not_there_is_there_to_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError) as told:
        load(tmp_path, device="cuda")
    assert is_permanent(told.value)
    with pytest.raises(CheckpointError) as told_of:
        load(tmp_path, device="cpu")
    assert is_permanent(told_of.value)


def test_a_cut_checkpoint_is_there_to_stay(tiny_checkpoints: Folders, tmp_path: Path) -> None:
    for path in tiny_checkpoints["custom"].rglob("*"):
        if path.is_file():
            place = tmp_path / path.relative_to(tiny_checkpoints["custom"])
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(path.read_bytes() if path.suffix != ".safetensors" else path.read_bytes()[:1000])
    with pytest.raises(CheckpointError) as told:
        load(tmp_path, device="cpu")
    assert is_permanent(told.value)


def test_a_port_that_is_taken(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    told = served(capsys, "--port", str(taken))
    assert f"nothing can listen on 127.0.0.1:{taken}" in told and "--port takes another" in told


def test_a_host_that_is_not_ours(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "192.0.2.1" in served(capsys, "--host", "192.0.2.1", "--port", "0")

    assert "--host a..b is not an address" in served(capsys, "--host", "a..b")

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # so that no name server is asked
    assert "--host not.a.name.invalid is not an address" in served(capsys, "--host", "not.a.name.invalid")


def test_a_voices_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    told = served(capsys, "--port", "0", "--voices", tmp_path / "file" / "voices")
    assert "cannot be written: Not a directory; --voices takes another" in told


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_temporary_folder_with_too_long_a_path_for_sockets(
    tiny_checkpoints: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    workers: str,
) -> None:  # fmt: skip
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    told = served(capsys, tiny_checkpoints["custom"], "--port", "0", "--device", "cpu", "--workers", workers)
    assert "too long a path" in told and "TMPDIR" in told and not list(deep.iterdir())


def test_no_such_model_and_no_such_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "nowhere is not a folder" in served(capsys, "nowhere", "--port", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device is available" in served(capsys, "--port", "0", "--device", "cuda")


def test_what_works_is_not_refused(tmp_path: Path, taken: int) -> None:
    check_start(ServeOptions(port=0, voices_folder=tmp_path / "new" / "voices"))
    assert (tmp_path / "new" / "voices").is_dir() and not list((tmp_path / "new" / "voices").iterdir())
    assert folder_problem(tmp_path) is None
    assert port_problem("127.0.0.1", taken) is not None and port_problem("127.0.0.1", 0) is None


@pytest.mark.parametrize("elsewhere", ["192.0.2.1", "127.0.0.2"])  # not of this machine; free
def test_a_port_is_free_if_it_is_at_each_address_of_a_name(
    elsewhere: str, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo

    def both(_: object, port: int, **options: Any) -> list[Any]:
        return [found for host in (elsewhere, "127.0.0.1") for found in look_up(host, port, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert "in use" in str(port_problem("localhost", taken)) and port_problem("localhost", 0) is None


@pytest.mark.parametrize(("addresses", "taken_one"), [(["::1"], "::1"), (["::1", "127.0.0.1"], "127.0.0.1")])
def test_front_ends_share_a_port_of_either_family(
    addresses: list[str], taken_one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not _has_ipv6():
        pytest.skip("no IPv6 here")
    look_up = socket.getaddrinfo

    def of_name(_: object, port: int, **options: Any) -> list[Any]:
        return [found for address in addresses for found in look_up(address, port, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", of_name)
    with bound("a.name.of.this.machine", 0) as first:
        assert first.getsockname()[0] == taken_one
        with bound("a.name.of.this.machine", first.getsockname()[1]) as second:
            assert second.getsockname() == first.getsockname()


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_a_port_that_was_closed_a_moment_ago_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            accepted.close()  # from this side, whose port is then in TIME_WAIT for a minute
    assert port_problem("127.0.0.1", port) is None


@pytest.mark.parametrize(
    ("host", "public", "address"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:8000/"),
        ("localhost", False, "http://localhost:8000/"),
        ("::1", False, "http://[::1]:8000/"),
        ("0.0.0.0", True, "http://127.0.0.1:8000/"),
        ("::", True, "http://[::1]:8000/"),
        ("10.0.0.7", True, "http://10.0.0.7:8000/"),
        ("speech.example", True, "http://speech.example:8000/"),
    ],
)
def test_where_it_is_reached(host: str, public: bool, address: str) -> None:
    assert (is_public(host), page_address(host, 8000)) == (public, address)
