"""A request's `voice` selects the voice that was meant, or the error says which voices there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sonant
from sonant import Engine, Voice
from sonant.errors import BadRequest, ConfigError, UnknownVoice, Unsupported, VoiceExists
from sonant.serving.voices.aliases import OPENAI_VOICES, aliases, check_aliases, parsed_aliases, reserved_names
from sonant.serving.voices.voice_names import VoiceNames
from sonant.serving.voices.voice_store import StoreOptions, VoiceRecord, VoiceStore

OWN = ("vivian", "Uncle_Fu", "ryan")


def engine(own: tuple[str, ...] = OWN, *, clones: bool = False, speaks_without_voice: bool = True) -> Any:
    spec = SimpleNamespace(clones=clones, speaks_without_voice=speaks_without_voice)
    return SimpleNamespace(voices=own, spec=spec)


CUSTOM, BASE, DESIGN = engine(), engine((), clones=True, speaks_without_voice=False), engine(())
EITHER = engine((), clones=True)  # clones, and speaks without a voice too


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    return VoiceStore(tmp_path, StoreOptions(consent="asserted"))


@pytest.fixture
def anna(store: VoiceStore) -> VoiceRecord:
    return store.add(
        Voice({"embedding": np.ones(8, np.float32)}), "Anna", model="base-8", consent_statement="she agreed"
    )


@pytest.mark.parametrize("name", ["uncle_fu", "Uncle_Fu", "UNCLE_FU"])
def test_a_voice_of_the_checkpoint_is_found_in_any_case(name: str) -> None:
    assert VoiceNames().resolve(name, CUSTOM) == "Uncle_Fu"
    assert VoiceNames().resolve({"id": name}, CUSTOM) == "Uncle_Fu"


def test_no_voice_is_left_to_the_engine() -> None:
    assert VoiceNames().resolve(None, CUSTOM) is None


@pytest.mark.parametrize("count", [1, 2, 9, 13, 40])
def test_openai_names_are_spread_over_all_voices_the_first_on_the_first(count: int) -> None:
    own = tuple(f"v{i}" for i in range(count))
    targets = aliases(own)
    assert tuple(targets) == OPENAI_VOICES and targets["alloy"] == "v0"
    uses = [list(targets.values()).count(name) for name in own]
    assert max(uses) - min(uses) <= 1
    assert {VoiceNames().resolve(name.upper(), engine(own)) for name in OPENAI_VOICES} == set(targets.values())


WOMEN = {"serena", "vivian", "Ono_Anna", "sohee", "heart", "bella"}
OPENAI_WOMEN, OPENAI_MEN = {"nova", "shimmer", "coral", "sage", "marin"}, {"onyx", "echo", "ash", "ballad", "cedar"}


@pytest.mark.parametrize(
    "own",
    [
        ("serena", "vivian", "uncle_fu", "ryan", "aiden", "Ono_Anna", "sohee", "eric", "dylan"),
        ("heart", "bella", "michael", "fenrir"),
        OWN,
    ],
)
def test_openai_names_keep_their_gender_where_it_is_known(own: tuple[str, ...]) -> None:
    targets = aliases(own)
    assert tuple(targets) == OPENAI_VOICES and targets["alloy"] == own[0] and set(targets.values()) <= set(own)
    assert all(targets[name] in WOMEN for name in OPENAI_WOMEN)
    assert not any(targets[name] in WOMEN for name in OPENAI_MEN)
    women = [name for name in own if name in WOMEN]
    assert {targets[name] for name in OPENAI_WOMEN} == set(women), "each has a name"
    assert {targets[name] for name in OPENAI_MEN} == set(own) - set(women)


def test_of_one_gender_alone_the_others_names_speak_too() -> None:
    assert set(aliases(("heart", "bella")).values()) == {"heart", "bella"}
    mixed = aliases(("heart", "someone"))
    assert mixed["nova"] == "heart" and mixed["onyx"] == "someone"


def test_an_operator_says_what_a_name_means(store: VoiceStore, anna: VoiceRecord) -> None:
    names = VoiceNames(store, model="base-8", given={"Onyx": "RYAN", "Narrator": "anna", "ghost": "nobody"})
    both = engine(OWN, clones=True)
    assert names.resolve("onyx", both) == names.resolve("ONYX", both) == "ryan"
    assert isinstance(names.resolve("narrator", both), Voice)
    with pytest.raises(UnknownVoice, match="'ghost' stands for 'nobody'"):
        names.resolve("ghost", both)
    listed = {line["id"]: line.get("alias_of") for line in names.listing(both)}
    assert listed["onyx"] == "ryan" and listed["narrator"] == "anna" and "ghost" not in listed
    assert isinstance(VoiceNames(store, given={"alloy": "anna"}).resolve("alloy", EITHER), Voice)


@pytest.mark.parametrize("line", ["onyx", "onyx=", "=ryan", "", "="])
def test_an_alias_that_is_none_is_told(line: str) -> None:
    with pytest.raises(ConfigError, match="NAME=VOICE"):
        parsed_aliases([line])


def test_an_alias_must_lead_somewhere_and_take_nobodys_name() -> None:
    assert parsed_aliases(["onyx = ryan", "a=b=c"]) == {"onyx": "ryan", "a": "b=c"}
    check_aliases(OWN, {"onyx": "Ryan"}, uploads=False)
    check_aliases(OWN, {"onyx": "anna"}, uploads=True)
    with pytest.raises(ConfigError, match="did you mean ryan"):
        check_aliases(OWN, {"onyx": "rian"}, uploads=False)
    with pytest.raises(ConfigError, match="has that name"):
        check_aliases(OWN, {"uncle_FU": "ryan"}, uploads=True)
    assert "onyx" in reserved_names((), {"onyx": "anna"})


def test_a_voice_of_the_checkpoint_goes_before_an_alias() -> None:
    assert VoiceNames().resolve("nova", engine(("ryan", "Nova"))) == "Nova"


def test_an_upload_is_found_by_id_and_name(store: VoiceStore, anna: VoiceRecord) -> None:
    names = VoiceNames(store, model="base-8")
    for given in (anna.id, {"id": anna.id}, "anna", {"id": "Anna"}):
        voice = names.resolve(given, BASE)
        assert isinstance(voice, Voice) and voice.tensors["embedding"].tolist() == [1.0] * 8


def test_openai_names_on_a_checkpoint_that_only_clones_are_unknown(store: VoiceStore, anna: VoiceRecord) -> None:
    with pytest.raises(UnknownVoice, match="no voice 'alloy'; there is Anna"):
        VoiceNames(store).resolve("alloy", BASE)
    with pytest.raises(UnknownVoice, match="upload a voice"):
        VoiceNames().resolve("alloy", BASE)


@pytest.mark.parametrize("speaker", [DESIGN, EITHER], ids=["designs", "clones too"])
def test_a_checkpoint_that_speaks_without_a_voice_takes_openai_names_for_none(store: VoiceStore, speaker: Any) -> None:
    for names in (VoiceNames(), VoiceNames(store, model="base-8")):
        assert {names.resolve(name, speaker) for name in (*OPENAI_VOICES, "Alloy", None)} == {None}
        with pytest.raises(UnknownVoice, match="no voice 'anna'; this checkpoint has no voices, and speaks if none is"):
            names.resolve("anna", speaker)
        assert names.listing(speaker) == []


def test_an_upload_named_as_openai_names_one_is_meant_where_it_can_be_spoken(store: VoiceStore) -> None:
    store.add(Voice({"latents": np.ones(8, np.float32)}), "Alloy", model="one", consent_statement="she agreed")
    assert isinstance(VoiceNames(store, model="one").resolve("alloy", EITHER), Voice)
    assert isinstance(VoiceNames(store, model="one").resolve("alloy", BASE), Voice)
    assert VoiceNames(store, model="another").resolve("alloy", EITHER) is None
    assert VoiceNames(store, model="one").resolve("alloy", DESIGN) is None


def test_an_upload_that_this_model_cannot_speak_is_told(store: VoiceStore, anna: VoiceRecord) -> None:
    with pytest.raises(UnknownVoice, match=r"encoded by base-8.*speaks with base-16"):
        VoiceNames(store, model="base-16").resolve("anna", BASE)
    with pytest.raises(Unsupported, match="'Anna' is a clone"):
        VoiceNames(store).resolve("anna", CUSTOM)


@pytest.mark.parametrize("name", ["nobody", "", "../../x", "a\0b", "\ud800", "x" * 10_000, "🙂", "voice_" + "0" * 24])
def test_an_unknown_voice_is_told_with_the_choices(store: VoiceStore, anna: VoiceRecord, name: str) -> None:
    for names, speaker, choices in (
        (VoiceNames(), CUSTOM, "vivian, Uncle_Fu, ryan, alloy"),
        (VoiceNames(store), BASE, "Anna"),
        (VoiceNames(), BASE, "upload a voice"),
    ):
        with pytest.raises(UnknownVoice, match=choices) as caught:
            names.resolve(name, speaker)
        assert len(str(caught.value).encode()) < 600


@pytest.mark.parametrize("voice", [5, True, [], {}, {"id": 5}, {"id": None}, {"id": "a", "x": 1}, {"name": "ryan"}])
def test_a_voice_of_the_wrong_shape_is_refused(voice: Any) -> None:
    with pytest.raises(BadRequest, match="voice must be a name"):
        VoiceNames().resolve(voice, CUSTOM)


def test_the_list_holds_what_can_be_spoken_and_all_of_it_resolves(store: VoiceStore, anna: VoiceRecord) -> None:
    store.add(Voice({"embedding": np.ones(9, np.float32)}), "Other", model="base-9", consent_statement="he agreed")
    names = VoiceNames(store, model="base-8")
    both = engine(OWN, clones=True)
    lines = names.listing(both)
    assert [(line["name"], line["kind"]) for line in lines[:4]] == [*((n, "own") for n in OWN), ("Anna", "clone")]
    assert lines[3]["id"] == anna.id and lines[3]["broken"] is False
    assert lines[4] == {"id": "alloy", "name": "alloy", "kind": "alias", "alias_of": "vivian"}
    assert [line["name"] for line in lines[4:]] == list(OPENAI_VOICES)
    assert all(names.resolve(str(line["id"]), both) is not None for line in lines)
    assert [c.kind for c in names.choices(CUSTOM) if c.kind == "clone"] == []


def test_uploads_cannot_take_a_name_that_means_something(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path, StoreOptions(consent="asserted", reserved_names=reserved_names(OWN)))
    for name in ("Ryan", "uncle_fu", "alloy"):
        with pytest.raises(VoiceExists):
            store.add(Voice({"embedding": np.ones(8, np.float32)}), name, model="m", consent_statement="yes")
    assert reserved_names(()) == frozenset()


def test_real_engines_speak_what_was_resolved(tiny_checkpoints: Mapping[str, Path], store: VoiceStore) -> None:
    def first_sound(speaker: Engine, voice: str) -> int:
        return len(speaker.speak("Hi.", voice=VoiceNames(store).resolve(voice, speaker), max_frames=2).samples)

    with sonant.load(tiny_checkpoints["custom"], device="cpu") as custom:
        assert first_sound(custom, "shimmer") > 0
    with sonant.load(tiny_checkpoints["base"], device="cpu") as base:
        tone = np.sin(np.arange(24_000) * 0.06, dtype=np.float32) * 0.5
        store.add(base.clone((tone, 24_000)), "Tone", model="tiny", consent_statement="a machine agreed")
        assert first_sound(base, "tone") > 0
