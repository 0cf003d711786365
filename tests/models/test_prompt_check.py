"""A broken prompt from another process is an error for its sender, and never reaches the step thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from prompt_cases import open_prompter, requests, voices
from sonant.errors import BadRequest
from sonant.models.prompt import Prompt, Prompter
from sonant.types import SpeechRequest

NAMES = ("base", "custom", "higgs", "voxcpm2", "toy")
SENDABLE = (np.ndarray, str, bytes, int, bool, NoneType)


@pytest.fixture(scope="module")
def prompters(tiny_checkpoints: Mapping[str, Path], tiny_higgs: Path, tiny_voxcpm2: Path) -> Mapping[str, Prompter]:
    folders = {**tiny_checkpoints, "higgs": tiny_higgs, "voxcpm2": tiny_voxcpm2}
    return {name: open_prompter(name, folders) for name in NAMES}


def usual(prompter: Prompter) -> Prompt:
    """A prompt with a voice, if the model takes one, so that every part of the layout is used."""
    voice = voices(prompter)[0] if prompter.spec.clones else None
    return prompter.prompt(SpeechRequest(text="hello the world", voice=voice, seed=3, max_frames=7))


def changed(array: np.ndarray, value: Any, at: Any = 0) -> np.ndarray:
    made = array.copy()
    made[at] = value
    return made


def staged(prompt: Prompt, **values: Any) -> Prompt:
    return replace(prompt, staged={**prompt.staged, **values})


def laid(prompt: Prompt, **values: Any) -> Prompt:
    return replace(prompt, payload=replace(prompt.payload, **values))


BROKEN: Mapping[str, Callable[[Prompt], Prompt]] = {
    "no payload": lambda p: replace(p, payload=None),
    "a payload of another kind": lambda p: replace(p, payload={"text": [1, 2]}),
    "a length too short": lambda p: replace(p, length=p.length - 1),
    "a length too long": lambda p: replace(p, length=p.length + 1),
    "a length that is none": lambda p: replace(p, length=float(p.length)),  # type: ignore[arg-type]
    "keys too few": lambda p: replace(p, keys=p.keys[1:]),
    "keys too narrow": lambda p: replace(p, keys=p.keys[:, 1:].copy()),
    "keys of another dtype": lambda p: replace(p, keys=p.keys.astype(np.int64)),
    "keys of another byte order": lambda p: replace(p, keys=p.keys.astype(">i4")),
    "keys as a list": lambda p: replace(p, keys=p.keys.tolist()),
    "no frames": lambda p: staged(replace(p, max_frames=0), frame_limit=0),
    "frames without end": lambda p: staged(replace(p, max_frames=2**31), frame_limit=2**31),
    "frames that are no number": lambda p: replace(p, max_frames="7"),  # type: ignore[arg-type]
    "frames that the device counts otherwise": lambda p: staged(p, frame_limit=p.max_frames + 1),
    "a kind of step that there is not": lambda p: replace(p, variant=3),
    "a kind of step that is no number": lambda p: replace(p, variant=None),  # type: ignore[arg-type]
    "a bad length that is none": lambda p: replace(p, bad_from=-1),
    "nothing staged": lambda p: replace(p, staged={}),
    "no mapping staged": lambda p: replace(p, staged=None),  # type: ignore[arg-type]
    "one staged too few": lambda p: replace(p, staged=dict(list(p.staged.items())[1:])),
    "one staged too many": lambda p: staged(p, more=1),
    "a retry of what there is not": lambda p: replace(p, retries=({"more": 1},)),
    "a retry of another length": lambda p: replace(p, retries=({"frame_limit": p.max_frames + 1},)),
    "a retry that is no mapping": lambda p: replace(p, retries=([1],)),  # type: ignore[arg-type]
    "NaN for a number": lambda p: staged(p, temperature=float("nan")),
    "infinity for a number": lambda p: staged(p, temperature=float("inf")),
    "a number out of its knob's range": lambda p: staged(p, temperature=-1.0),
    "an array for a number": lambda p: staged(p, temperature=np.ones(2, np.float32)),
    "words for a number": lambda p: staged(p, temperature="hot"),
}

OF_A_FAMILY: Mapping[str, Mapping[str, Callable[[Prompt], Prompt]]] = {
    "base": {
        "a text id too large": lambda p: laid(p, text=changed(p.payload.text, 2**30)),
        "a text id below none": lambda p: laid(p, text=changed(p.payload.text, -2)),
        "text too short": lambda p: laid(p, text=p.payload.text[1:]),
        "text of another dtype": lambda p: laid(p, text=p.payload.text.astype(np.float32)),
        "codes too few": lambda p: laid(p, codes=p.payload.codes[1:]),
        "codebooks too few": lambda p: laid(p, codes=p.payload.codes[:, 1:], preroll=p.payload.preroll[:, 1:]),
        "a first code too large": lambda p: laid(p, codes=changed(p.payload.codes, 10**6, (-1, 0))),
        "a later code too large": lambda p: laid(p, codes=changed(p.payload.codes, 2048, (-1, 1))),
        "a code below none": lambda p: laid(p, codes=changed(p.payload.codes, -2, (-1, 1))),
        "a preroll of no code": lambda p: laid(p, preroll=changed(p.payload.preroll, -1)),
        "a preroll code too large": lambda p: laid(p, preroll=changed(p.payload.preroll, 2048)),
        "a preroll without frames": lambda p: laid(p, preroll=p.payload.preroll[:0]),
        "a preroll without a voice": lambda p: laid(p, speaker=None, voice_key=""),
        "a speaker too small": lambda p: laid(p, speaker=p.payload.speaker[1:]),
        "a speaker that is no number": lambda p: laid(p, speaker=changed(p.payload.speaker, np.nan)),
        "a speaker past the end": lambda p: laid(p, speaker_at=len(p.payload.text)),
        "a voice without its fingerprint": lambda p: laid(p, voice_key=""),
        "more text to come than a row has room for": lambda p: staged(
            laid(p, trailing=np.zeros(1025, np.int32)), trailing_length=1025
        ),
        "more text to come than there is": lambda p: staged(p, trailing_length=len(p.payload.trailing) + 1),
        "text to come of no token": lambda p: staged(laid(p, trailing=np.full(1, -1, np.int32)), trailing_length=1),
        "a seed of one word": lambda p: staged(p, seed=np.zeros(1, np.int32)),
        "a seed of another dtype": lambda p: staged(p, seed=np.zeros(2, np.int64)),
        "a top_k that is not whole": lambda p: staged(p, top_k=2.5),
        "tokens that are no number": lambda p: laid(p, spoken_tokens=None),
    },
    "higgs": {
        "a text id too large": lambda p: laid(p, text=changed(p.payload.text, 2**30)),
        "no text id": lambda p: laid(p, text=changed(p.payload.text, -1)),
        "codebooks too few": lambda p: laid(p, codes=p.payload.codes[:, 1:]),
        "codes too few": lambda p: laid(p, codes=p.payload.codes[1:]),
        "a code too large": lambda p: laid(p, codes=changed(p.payload.codes, 1026, (-1, 3))),
        "a code below none": lambda p: laid(p, codes=changed(p.payload.codes, -2, (0, 3))),
        "a row of some codes": lambda p: laid(p, codes=changed(p.payload.codes, -1, (-1, 3))),
        "text at the end": lambda p: laid(p, codes=changed(p.payload.codes, -1, -1)),
        "RAS over more rows than are kept": lambda p: staged(p, ras_win_len=33),
    },
    "voxcpm2": {
        "a text id too large": lambda p: laid(p, text=changed(p.payload.text, 2**30)),
        "no text id": lambda p: laid(p, text=changed(p.payload.text, -1)),
        "patches too few": lambda p: laid(p, patches=p.payload.patches[1:]),
        "patches too small": lambda p: laid(p, patches=p.payload.patches[:, 1:], primer=p.payload.primer[:, 1:]),
        "patches of another dtype": lambda p: laid(p, patches=p.payload.patches.astype(np.float64)),
        "a patch that is no number": lambda p: laid(p, patches=changed(p.payload.patches, np.nan)),
        "a primer that is no number": lambda p: laid(p, primer=changed(p.payload.primer, -np.inf)),
        "a primer too long": lambda p: laid(p, primer=np.concatenate([p.payload.primer] * 2)),
        "a primer of another shape": lambda p: laid(p, primer=p.payload.primer[:, 1:]),
        "sound of another dtype": lambda p: laid(p, audio=p.payload.audio.astype(np.int32)),
        "sound too short": lambda p: laid(p, audio=p.payload.audio[1:]),
        "a retry with a broken seed": lambda p: replace(p, retries=({"seed": np.zeros(3, np.int32)},)),
    },
    "toy": {
        "an id too large": lambda p: laid(p, ids=changed(p.payload.ids, 256)),
        "latents too few": lambda p: laid(p, latents=p.payload.latents[1:]),
        "a latent that is no number": lambda p: laid(p, latents=changed(p.payload.latents, np.inf)),
    },
}
OF_A_FAMILY = {**OF_A_FAMILY, "custom": {"a length of none": lambda p: laid(p, text=p.payload.text[:0])}}
CASES = [(name, what) for name in NAMES for what in (*BROKEN, *OF_A_FAMILY[name])]


@pytest.mark.parametrize(("name", "what"), CASES, ids=[f"{name}: {what}" for name, what in CASES])
def test_a_broken_prompt_is_refused(prompters: Mapping[str, Prompter], name: str, what: str) -> None:
    prompter = prompters[name]
    prompt = usual(prompter)
    prompter.check(prompt)
    with pytest.raises(BadRequest, match=r"not of this model: .+; lay it out"):
        prompter.check({**BROKEN, **OF_A_FAMILY[name]}[what](prompt))


@pytest.mark.parametrize("name", NAMES)
def test_whatever_the_prompter_lays_out_passes(prompters: Mapping[str, Prompter], name: str) -> None:
    prompter = prompters[name]
    for request in requests(prompter).values():
        prompter.check(prompter.prompt(request))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", NAMES)
def test_a_prompt_of_another_family_is_refused(prompters: Mapping[str, Prompter], name: str, other: str) -> None:
    if prompters[name].spec.family != prompters[other].spec.family:
        with pytest.raises(BadRequest, match="its payload is"):
            prompters[name].check(usual(prompters[other]))


@pytest.mark.parametrize("name", NAMES)
def test_a_layout_can_be_sent_field_by_field(prompters: Mapping[str, Prompter], name: str) -> None:
    layout = prompters[name].layout
    hints = get_type_hints(layout)
    assert [f.name for f in fields(layout)] == list(hints)
    for hint in hints.values():
        assert set(kinds(hint)) <= set(SENDABLE), hint
    payload = usual(prompters[name]).payload
    assert type(payload) is layout
    again = layout(**{f.name: getattr(payload, f.name) for f in fields(layout)})
    prompters[name].check(replace(usual(prompters[name]), payload=again))


def kinds(hint: Any) -> Iterator[type]:
    """The types that an annotation allows; for a tuple, those of its items."""
    if isinstance(hint, UnionType):
        for one in get_args(hint):
            yield from kinds(one)
    elif get_origin(hint) is tuple:
        assert set(get_args(hint)) <= {int, Ellipsis}
    else:
        yield get_origin(hint) or hint
