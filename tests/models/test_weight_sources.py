"""Shards and pickles come from strangers: their metadata is checked, and no code in them is run."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sonant.errors import CheckpointError
from sonant.models.weights import PickledTensors, SafetensorsFile, ShardedSafetensors, load_into, open_weights
from weight_files import Fused, shards, stored, whole, write_index


@pytest.mark.parametrize(
    "name",
    ["../model-0.safetensors", "/etc/passwd", "a/../../b.safetensors", "..", "", ".", "..\\a.safetensors", "C:a"],
)
def test_an_index_cannot_lead_out_of_its_folder(name: str, tmp_path: Path) -> None:
    (folder := tmp_path / "model").mkdir()
    save_file(stored(), tmp_path / "model-0.safetensors")
    with pytest.raises(CheckpointError, match="no file inside its folder"):
        ShardedSafetensors(write_index(folder, dict.fromkeys(stored(), name)))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}', "[" * 100_000]
)
def test_an_index_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (path := tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        open_weights(tmp_path)
    assert path.exists()


def test_what_the_index_says_must_be_so(tmp_path: Path) -> None:
    places = {name: f"model-{n % 2}.safetensors" for n, name in enumerate(stored())}
    first, second = "model-0.safetensors", "model-1.safetensors"
    for change, says in (
        ({"a.ghost": first}, f"a.ghost should be in {first}, which does not hold it"),
        ({"a.q_proj.weight": second}, f"a.q_proj.weight should be in {second}, but {first} holds it"),
        ({"a.ghost": "model-2.safetensors"}, r"model-2.safetensors is missing, though model.safetensors.index.json"),
        ({"a.norm.bias": None}, "does not list a.norm.bias"),
    ):
        shards(tmp_path, stored())
        changed = {n: shard for n, shard in (places | change).items() if shard is not None}
        with pytest.raises(CheckpointError, match=says):
            ShardedSafetensors(write_index(tmp_path, changed))


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    shards(tmp_path, stored())
    for path in tmp_path.glob("model-*.safetensors"):
        save_file(stored(), path)
    with pytest.raises(CheckpointError, match=r"is both in model-0\.safetensors and in model-1\.safetensors"):
        open_weights(tmp_path)


def test_a_shard_may_be_a_link_as_in_a_download_cache(tmp_path: Path) -> None:
    shards(tmp_path, stored())
    path = tmp_path / "model-1.safetensors"
    (tmp_path / "elsewhere").mkdir()
    path.rename(tmp_path / "elsewhere" / "blob")
    path.symlink_to(tmp_path / "elsewhere" / "blob")
    load_into(Fused(), open_weights(tmp_path), prefix="a.")


def test_one_whole_file_goes_before_shards(tmp_path: Path) -> None:
    shards(tmp_path, stored(1))
    load_into(module := Fused(), whole(tmp_path, stored(2)), prefix="a.")
    assert torch.equal(module.norm.weight, stored(2)["a.norm.weight"])


def test_shards_without_an_index_ask_for_it(tmp_path: Path) -> None:
    save_file(stored(), tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json is missing"):
        open_weights(tmp_path)


def test_another_stem_is_another_model(tmp_path: Path) -> None:
    save_file(stored(), tmp_path / "codec.safetensors")
    load_into(Fused(), open_weights(tmp_path, "codec"), prefix="a.")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        open_weights(tmp_path)


def test_a_dtype_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = json.dumps({"a": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        SafetensorsFile(path)


# Pickles


def test_a_pickle_that_would_run_something_runs_nothing(tmp_path: Path) -> None:
    witness = tmp_path / "witness"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return witness.touch, ()  # type: ignore[return-value]

    torch.save({"a": Bomb()}, tmp_path / "zip.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Bomb()))
    for name in ("zip.pth", "plain.pth"):
        with pytest.raises(CheckpointError, match=rf"{name} is not a whole file of tensors"):
            PickledTensors(tmp_path / name)
    assert not witness.exists()


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ([torch.ones(1)], "holds a list"),
        ({"a": 1}, "'a' is no plain tensor"),
        ({1: torch.ones(1)}, "1 is no plain tensor"),
        ({"state_dict": {"a": torch.ones(1)}, "epoch": 3}, "'state_dict' is no plain tensor"),
        ({"state_dict": [1]}, "holds a list"),
        ({"a": torch.ones(2, 2).to_sparse()}, "'a' is no plain tensor"),
        ({"a": torch.ones(2, 2, device="meta")}, "'a' is no plain tensor"),
    ],
    ids=str,
)
def test_a_pickle_of_anything_but_tensors_is_refused(held: object, says: str, tmp_path: Path) -> None:
    torch.save(held, tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match=says):
        PickledTensors(tmp_path / "model.pth")


def test_a_broken_or_missing_pickle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    with pytest.raises(CheckpointError, match=r"model\.pth is missing"):
        PickledTensors(path)
    torch.save(stored(), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(CheckpointError, match=r"model\.pth is not a whole file of tensors"):
        PickledTensors(path)


def test_nobody_gets_a_pickle_without_asking_for_it(tmp_path: Path) -> None:
    torch.save(stored(), tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match=r"model\.pth is a pickle.*convert it to safetensors"):
        open_weights(tmp_path)


def test_a_pickle_of_other_weights_is_not_offered_in_their_place(tmp_path: Path) -> None:
    torch.save(stored(), tmp_path / "audiovae.pth")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing$"):
        open_weights(tmp_path)
    torch.save(stored(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"is missing; pytorch_model\.bin is a pickle"):
        open_weights(tmp_path)
