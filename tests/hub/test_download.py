"""`sonant download` from a hub on this machine: what is fetched, what fails, and what `--model` makes of a name."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from hub.stand_in import StandIn, Stored
from sonant.cli.main import main
from sonant.hub.hub_error import HubError
from sonant.hub.names import known_names
from sonant.hub.repository import StoredFile
from sonant.hub.selection import select
from sonant.models.higgs_audio_v2.synthetic.writer import write_codec

Folders = Mapping[str, Path]
Run = Callable[..., tuple[int, str, str]]

QWEN = "Qwen/Qwen3-TTS-12Hz-1.7B-Base"
NAME = "qwen3-tts-1.7b-base"
KEPT = 10 << 20  # downloads are written in pieces of this many bytes


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SONANT_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda s: None)  # between its retries
    with StandIn() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def run(hub: StandIn, capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*args: str | Path) -> tuple[int, str, str]:
        code = main([str(a) for a in args])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def refused(run: Run, *args: str | Path) -> str:
    code, out, err = run("download", *args)
    last = err.splitlines()[-1]
    assert (code, out) == (2, "") and last.startswith("sonant: ") and "Traceback" not in err
    return last


def test_a_checkpoint_is_fetched_checked_and_found_by_its_name(
    hub: StandIn, run: Run, tiny_checkpoints: Folders
) -> None:
    extra = {"README.md": b"# card", "LICENSE": b"words", "text_encoder/model.safetensors": b"x", "onnx/a.onnx": b"x"}
    hub.repositories[QWEN] = Stored(tiny_checkpoints["base"], extra=extra)
    for name in (NAME, QWEN):
        code, _, err = run("voices", "--model", name)
        assert (code, hub.fetched.total()) == (2, 0) and f"sonant download {name}" in err
    code, out, err = run("download", NAME, "--yes")
    assert code == 0 and f"--model {NAME}" in out
    assert "licence: apache-2.0" in err and "model.safetensors" in err and "checked" in err
    folder = Path(out.partition(": ")[0])
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert {"config.json", "model.safetensors", "speech_tokenizer/model.safetensors", "vocab.json", "LICENSE"} <= there
    assert not any(path.startswith(".") for path in there)
    assert not there & {"README.md", "text_encoder/model.safetensors", "onnx/a.onnx", "preprocessor_config.json"}
    assert json.loads(run("doctor", "--json", "--model", NAME)[1])["model"]["error"] is None


@pytest.mark.parametrize("family", ["higgs", "voxcpm2"])
def test_what_is_fetched_of_each_family_can_be_loaded(
    hub: StandIn, run: Run, tiny_higgs: Path, tiny_voxcpm2: Path, tmp_path: Path, family: str
) -> None:
    if family == "higgs":
        model = shutil.copytree(tiny_higgs, tmp_path / "model", ignore=shutil.ignore_patterns("audio_tokenizer"))
        (model / "model-00001-of-00002.safetensors").write_bytes(b"the first form, left beside the whole file")
        hub.repositories["bosonai/higgs-audio-v2-generation-3B-base"] = Stored(model, licence=None)
        write_codec(tmp_path / "codec", size="tiny", form="boson")
        copy = {"model.safetensors": b"the language model once more"}
        hub.repositories["bosonai/higgs-audio-v2-tokenizer"] = Stored(tmp_path / "codec", extra=copy)
        name = "higgs-audio-v2"
    else:
        hub.repositories["openbmb/VoxCPM2"] = Stored(tiny_voxcpm2)
        name = "voxcpm2"
    code, _, err = run("download", name, "--yes")
    assert code == 0 and ("licence: not stated" in err) == (family == "higgs")
    assert not any("-of-" in path for path in hub.fetched) and hub.fetched["model.safetensors"] == 1
    assert json.loads(run("doctor", "--json", "--model", name)[1])["problems"] == []


def test_a_repository_by_its_own_name_into_a_folder(hub: StandIn, run: Run, tiny_checkpoints: Folders) -> None:
    hub.repositories["somebody/tuned"] = Stored(tiny_checkpoints["custom"])
    assert run("download", "somebody/tuned", "--to", "mine", "--yes")[0] == 0
    assert run("voices", "--model", "mine")[0] == 0
    assert run("download", "somebody/tuned", "--to", "mine", "--yes")[0] == 0  # again: all is there
    assert hub.fetched["model.safetensors"] == 1
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    assert "full is not empty" in refused(run, "somebody/tuned", "--to", "full", "--yes")


def test_a_storage_elsewhere_is_not_told_who_asks(
    hub: StandIn, run: Run, tiny_checkpoints: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: "hf_secret")
    with StandIn() as storage:
        hub.repositories[QWEN] = storage.repositories[QWEN] = Stored(tiny_checkpoints["base"])
        hub.storage = storage
        assert run("download", NAME, "--yes")[0] == 0
    assert ("merges.txt", "Bearer hf_secret") in hub.tokens and ("model.safetensors", "Bearer hf_secret") in hub.tokens
    assert storage.tokens and all(token is None for _, token in storage.tokens)


def test_a_broken_transfer_goes_on_where_it_ended(hub: StandIn, run: Run, tiny_checkpoints: Folders) -> None:
    hub.repositories[QWEN] = Stored(tiny_checkpoints["base"])
    hub.cuts["model.safetensors"] = [KEPT + 1000]
    assert run("download", NAME, "--yes")[0] == 0
    assert hub.ranges == [("model.safetensors", f"bytes={KEPT}-")]


def test_a_later_run_goes_on_where_an_earlier_one_gave_up(hub: StandIn, run: Run, tiny_checkpoints: Folders) -> None:
    hub.repositories[QWEN] = Stored(tiny_checkpoints["base"])
    hub.cuts["model.safetensors"] = [KEPT + 1000] + 20 * [0]
    first = refused(run, NAME, "--yes")
    assert "Is there a network?" in first and "run the same command again to continue" in first
    assert f"sonant download {NAME}" in run("voices", "--model", NAME)[2]  # half a checkpoint counts as none
    before = hub.fetched.copy()
    hub.cuts.clear()
    hub.ranges.clear()
    assert run("download", NAME, "--yes")[0] == 0
    assert hub.ranges == [("model.safetensors", f"bytes={KEPT}-")]
    assert hub.fetched["merges.txt"] == before["merges.txt"] == 1


def test_what_has_come_already_needs_no_room_again(
    hub: StandIn, run: Run, tiny_checkpoints: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that had room for a checkpoint has room for the rest of it."""
    hub.repositories[QWEN] = Stored(tiny_checkpoints["base"])
    whole = sum(len(content) for content in hub.repositories[QWEN].files().values())

    def leave(free: int) -> None:
        monkeypatch.setattr("sonant.hub.download.shutil.disk_usage", lambda _: SimpleNamespace(free=free))

    leave(KEPT)
    assert "and only 0.0 GB are free there" in refused(run, NAME, "--yes")
    leave(whole)
    hub.cuts["model.safetensors"] = [KEPT + 1000] + 20 * [0]
    refused(run, NAME, "--yes")
    hub.cuts.clear()
    leave(whole - KEPT)
    assert run("download", NAME, "--yes")[0] == 0


def test_half_of_a_newer_revision_is_no_checkpoint(hub: StandIn, run: Run, tiny_checkpoints: Folders) -> None:
    hub.repositories[QWEN] = Stored(tiny_checkpoints["base"])
    assert run("download", NAME, "--yes")[0] == 0
    assert run("download", NAME, "--yes")[0] == run("voices", "--model", NAME)[0] == 0  # again: nothing is newer
    hub.repositories[QWEN] = Stored(tiny_checkpoints["custom"])
    hub.cuts["model.safetensors"] = [KEPT + 1000] + 20 * [0]
    refused(run, NAME, "--yes")
    code, _, err = run("voices", "--model", NAME)
    assert code == 2 and f"sonant download {NAME}" in err
    hub.cuts.clear()
    assert run("download", NAME, "--yes")[0] == 0
    assert "ryan" in run("voices", "--model", NAME)[1]


@pytest.mark.parametrize("path", ["model.safetensors", "vocab.json"])
def test_a_wrong_checksum_is_told_and_the_file_removed(
    hub: StandIn, run: Run, tiny_checkpoints: Folders, path: str
) -> None:
    hub.repositories[QWEN] = Stored(tiny_checkpoints["base"])
    hub.damaged.add(path)
    assert f"{path} of {QWEN} arrived damaged" in refused(run, NAME, "--yes", "--to", "here")
    assert not Path("here", path).exists() and not Path("here/config.json").exists()
    hub.damaged.clear()
    assert run("download", NAME, "--yes", "--to", "here")[0] == 0


def test_what_the_hub_refuses_is_told(hub: StandIn, run: Run, tiny_checkpoints: Folders, tmp_path: Path) -> None:
    assert "there is no repository nobody/nothing" in refused(run, "nobody/nothing", "--yes")
    hub.repositories["some/gated"] = Stored(tiny_checkpoints["base"], gated=True)
    gated = refused(run, "some/gated", "--yes")
    assert f"accept its terms at {hub.url}/some/gated" in gated and "HF_TOKEN" in gated
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "llama"}')
    hub.repositories["some/llama"] = Stored(other)
    assert "some/llama is not a checkpoint that Sonant can load" in refused(run, "some/llama", "--yes")
    (other / "config.json").write_text('{"model_type": "qwen3_tts"}')
    assert "holds no weights" in refused(run, "some/llama", "--yes")
    (other / "config.json").unlink()
    (other / "notes.txt").write_text("x")
    assert "holds no config.json" in refused(run, "some/llama", "--yes")
    hub.failing = 503
    assert "answered 503" in refused(run, "some/gated", "--yes")


def test_without_a_network(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIn() as gone:
        address = gone.url
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert f"cannot be fetched from {address}" in refused(run, NAME, "--yes")


def test_the_licence_has_to_be_accepted(
    hub: StandIn, run: Run, tiny_checkpoints: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories[QWEN] = Stored(tiny_checkpoints["base"], licence="other")
    monkeypatch.setattr(sys, "stdin", StringIO(""))
    assert "run the same command with --yes" in refused(run, NAME)

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("no\n"))
    code, _, err = run("download", NAME)
    assert code == 2 and "sonant: nothing was downloaded: the licence was not accepted" in err
    assert hub.fetched["model.safetensors"] == 0
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    code, _, err = run("download", NAME)
    assert code == 0 and "licence: other" in err and "[y/N]" in err


def test_names(run: Run) -> None:
    code, out, _ = run("download")
    assert code == 0 and all(name in out and repo in out for name, repo in known_names().items())
    told = refused(run, "qwen3-tts-1.7b-bas")
    assert f"did you mean {NAME}?" in told
    assert "there is no checkpoint called '../elsewhere'" in refused(run, "../elsewhere")


def test_the_extra_is_named_where_it_lacks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'sonant[hub]'" in refused(run, NAME, "--yes")


@pytest.mark.parametrize(
    ("path", "sha256", "blob"),
    [
        ("model.safetensors", "/etc/profile", None),
        ("config.json", None, "../../../.profile"),
        ("../config.json", None, "ab"),
        ("/etc/config.json", None, "ab"),
    ],
)
def test_a_hub_cannot_name_places_outside_the_folder(path: str, sha256: str | None, blob: str | None) -> None:
    with pytest.raises(HubError, match="lists a file that cannot be one"):
        StoredFile(path, 1, sha256, blob)


def test_one_form_of_the_same_weights() -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    patterns = ("config.json", "model*.safetensors", "model.safetensors.index.json", "vae.safetensors", "vae.pth")
    others = ["config.json", "deep/model.safetensors", "vae.pth"]
    assert select([*shards, *others], patterns) == [*shards, "vae.pth", "config.json"]
    whole = [*shards, *others, "model.safetensors", "vae.safetensors"]
    assert select(whole, patterns) == ["model.safetensors", "vae.safetensors", "config.json"]
