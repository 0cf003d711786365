"""Clients may name a language in the usual ways: by name, by code, or by a tag with a region."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from sonant.config import EngineConfig
from sonant.errors import UnknownLanguage
from sonant.models.prompt import Prompter
from sonant.models.registry import load_prompter
from sonant.types import SpeechRequest

CHECKPOINTS = ("few_codebooks", "tiny_higgs", "tiny_voxcpm2")


@pytest.fixture(params=CHECKPOINTS)
def prompter(request: pytest.FixtureRequest) -> Prompter:
    found: Path | Mapping[str, Path] = request.getfixturevalue(request.param)
    return load_prompter(found if isinstance(found, Path) else found["custom"], EngineConfig())


@pytest.mark.parametrize(
    ("name", "spellings"),
    [("english", ["English", "en", "EN", "en-US", "en_gb"]), ("chinese", ["zh", "zh-CN", "zh_hans_cn"])],
)
def test_names_codes_and_tags_are_the_same_to_every_family(prompter: Prompter, name: str, spellings: list[str]) -> None:
    keys = prompter.prompt(SpeechRequest(text="hello", language=name)).keys
    for spelling in spellings:
        told = prompter.prompt(SpeechRequest(text="hello", language=spelling))
        np.testing.assert_array_equal(told.keys, keys, err_msg=spelling)


@pytest.mark.parametrize("language", ["klingon", "tlh", "tlh-US", "-", "beijing_dialect"])
def test_what_no_family_speaks_is_refused_in_any_spelling(prompter: Prompter, language: str) -> None:
    with pytest.raises(UnknownLanguage, match=f"no language '{language}'"):
        prompter.prompt(SpeechRequest(text="hello", language=language))
