"""Front-end processes lay prompts out without torch, which takes seconds to import and hundreds of megabytes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import sonant
from prompt_cases import flat, requests
from sonant.config import EngineConfig
from sonant.models.base import SpeechModel
from sonant.models.registry import load_model
from toy_family.model import ToyModel

TESTS = Path(__file__).parent
# Importing torch there raises ImportError.
BLOCKED = "import sys; sys.modules['torch'] = None; sys.path.insert(0, sys.argv[1]); "
CHECKPOINTS = ("base", "custom", "design", "higgs", "voxcpm2")


@pytest.fixture(scope="module")
def folders(tiny_checkpoints: Mapping[str, Path], tiny_higgs: Path, tiny_voxcpm2: Path) -> Mapping[str, Path]:
    return {**tiny_checkpoints, "higgs": tiny_higgs, "voxcpm2": tiny_voxcpm2}


@pytest.fixture(scope="module")
def laid_out(folders: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, np.ndarray]:
    """All arrays of all prompts by checkpoint, case and name, made in a process that has no torch."""
    out = tmp_path_factory.mktemp("without_torch") / "prompts.npz"
    named = json.dumps({name: str(folder) for name, folder in folders.items()})
    code = BLOCKED + "import without_torch; without_torch.main(*sys.argv[2:])"
    command = [sys.executable, "-c", code, str(TESTS), named, str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    with np.load(out) as arrays:
        return dict(arrays)


def model_of(name: str, folders: Mapping[str, Path]) -> SpeechModel:
    if name == "toy":
        return ToyModel(EngineConfig(), torch.device("cpu"), context_segments=2, most_speakers=3)
    return load_model(folders[name], EngineConfig(), torch.device("meta"), torch.float32, torch.float32)


@pytest.mark.parametrize("checkpoint", [*CHECKPOINTS, "toy"])
def test_prompts_are_those_of_the_model(
    laid_out: Mapping[str, np.ndarray], folders: Mapping[str, Path], checkpoint: str
) -> None:
    model = model_of(checkpoint, folders)
    expected = {
        f"{checkpoint}/{case}/{name}": value
        for case, request in requests(model.prompter).items()
        for name, value in flat(model.prompter.prompt(request)).items()
    }
    assert {name for name in laid_out if name.startswith(f"{checkpoint}/")} == expected.keys()
    for name, value in expected.items():
        assert laid_out[name].dtype == value.dtype, name
        np.testing.assert_array_equal(laid_out[name], value, err_msg=name)


@pytest.mark.parametrize("checkpoint", [*CHECKPOINTS, "toy"])
def test_what_the_model_declares_is_said_once(folders: Mapping[str, Path], checkpoint: str) -> None:
    model = model_of(checkpoint, folders)
    assert vars(model.spec).items() >= vars(model.prompter.spec).items()
    assert [(f.name, f.shape) for f in model.spec.staged] == [(n.name, n.shape) for n in model.spec.staged_numbers]


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_public_names_are_there_without_torch_being_imported() -> None:
    assert fresh("import sys, sonant; print('torch' in sys.modules, *dir(sonant))").split()[0] == "False"
    assert set(sonant.__all__) <= set(dir(sonant))
    assert fresh("import sonant; print(sonant.errors.BadText.__name__)") == "BadText"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sonant.nothing  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        from sonant import nothing  # type: ignore[attr-defined] # noqa: F401


def test_load_is_a_function_whoever_imports_its_module_first() -> None:
    code = "import sonant.loading, sonant; from sonant import *; print(callable(sonant.load), load is sonant.load)"
    assert fresh(code) == "True True"
