"""What a request's `voice` means to one engine: a voice of the checkpoint, an alias of one, or an uploaded one.

Clients written for OpenAI send one of its thirteen names, and some refuse to send any other, so those names must
work wherever the checkpoint can speak without a clip. A name is looked up in this order: the checkpoint's own voices,
then aliases, then uploads; so no upload can change what an older name means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from sonant.engine.intake import Intake
from sonant.errors import BadRequest, UnknownVoice, Unsupported
from sonant.serving.voices.aliases import OPENAI_VOICES, aliases
from sonant.serving.voices.labels import label_key
from sonant.serving.voices.voice_store import VoiceRecord, VoiceStore
from sonant.voice import Voice

_MAX_CHARS = 256  # of any name worth looking up
_SHOWN_CHOICES = 30  # in an error message
_SHOWN_CHARS = 64


@dataclass(frozen=True)
class VoiceChoice:
    """An entry of the voice list."""

    id: str
    name: str
    kind: Literal["own", "alias", "clone"]
    target: str | None = None  # of an alias
    record: VoiceRecord | None = None  # of a clone


class VoiceNames:
    """Is given the engine with each call, since a server may have to restart its engine."""

    def __init__(
        self, store: VoiceStore | None = None, *, model: str | None = None, given: Mapping[str, str] | None = None
    ) -> None:
        """`model` is the mark that uploads must bear; None: any. `given` are aliases that the operator set."""
        self.store, self.model, self.given = store, model, given
        self._known: tuple[tuple[str, ...] | None, dict[str, str], dict[str, str]] = (None, {}, {})  # see `_names`

    def resolve(self, voice: str | Mapping[str, object] | None, engine: Intake) -> str | Voice | None:
        """What to put into `SpeechRequest.voice`. Uploads come from disk or cache: call from a worker thread."""
        if voice is None:
            return None  # the engine's default, or its own error
        name = _name(voice)
        key = label_key(name) if len(name) <= _MAX_CHARS else ""
        (own, others), spec = self._names(engine), engine.spec
        alias = others.get(key)
        if key in own or (alias is not None and label_key(alias) in own):
            return own.get(key, alias)
        if alias is not None:
            return self._aliased(name, alias, engine)
        # OpenAI's clients cannot leave `voice` out, so where no voice has to be named its names stand for none.
        nobody = spec.speaks_without_voice and key in OPENAI_VOICES
        if nobody and not spec.clones:
            return None
        try:
            return self._upload(name, engine)
        except (_Absent, UnknownVoice) as e:
            if nobody:
                return None
            raise (UnknownVoice(self._unknown(name, engine)) if isinstance(e, _Absent) else e) from None

    def is_own(self, voice: str | None, engine: Intake) -> bool:
        """Whether `resolve` needs no store: for a voice of the checkpoint, an alias of one, or None."""
        if voice is None:
            return True
        key = label_key(voice) if len(voice) <= _MAX_CHARS else ""
        own, others = self._names(engine)
        alias = others.get(key)
        return key in own or (alias is not None and label_key(alias) in own)

    def choices(self, engine: Intake) -> tuple[VoiceChoice, ...]:
        """All that `resolve` accepts: own voices, uploads if this checkpoint can speak with them, aliases."""
        own, others = self._names(engine)
        uploads = self.store.list() if self.store is not None and engine.spec.clones else ()
        uploads = tuple(r for r in uploads if self.model in (None, r.model))
        there = {*own, *(label_key(r.name) for r in uploads), *(r.id for r in uploads)}
        return (
            *(VoiceChoice(name, name, "own") for name in own.values()),
            *(VoiceChoice(r.id, r.name, "clone", record=r) for r in uploads),
            *(
                VoiceChoice(name, name, "alias", target=target)
                for name, target in others.items()
                if name not in own and label_key(target) in there
            ),
        )

    def listing(self, engine: Intake) -> list[dict[str, object]]:
        """The choices as JSON objects: `id` and `name` for clients with a voice picker, then what else we know."""
        lines: list[dict[str, object]] = []
        for choice in self.choices(engine):
            line: dict[str, object] = {"id": choice.id, "name": choice.name, "kind": choice.kind}
            if choice.target is not None:
                line["alias_of"] = choice.target
            if choice.record is not None:
                r = choice.record
                line |= {"created_at": r.created_at, "language": r.language, "clip_s": r.clip_s, "broken": r.broken}
            lines.append(line)
        return lines

    def _names(self, engine: Intake) -> tuple[dict[str, str], dict[str, str]]:
        """The checkpoint's voices by key, and what aliases stand for. Cached, since every request needs both."""
        voices, own, others = self._known
        if voices != engine.voices:
            own, others = _by_key(engine.voices), aliases(engine.voices, self.given)
            self._known = tuple(engine.voices), own, others
        return own, others

    def _aliased(self, name: str, target: str, engine: Intake) -> Voice:
        try:
            return self._upload(target, engine)
        except _Absent:
            shown = name[:_SHOWN_CHARS]
            raise UnknownVoice(f"{shown!r} stands for {target!r} on this server, and no such voice is there") from None

    def _upload(self, name: str, engine: Intake) -> Voice:
        if self.store is None:
            raise _Absent
        try:
            record = self.store.get(name)
        except UnknownVoice as e:
            raise _Absent from e
        if not engine.spec.clones:
            raise Unsupported(
                f"the voice {record.name!r} is a clone, and this checkpoint cannot clone; load one that can"
            )
        if self.model not in (None, record.model):
            raise UnknownVoice(
                f"the voice {record.name!r} was encoded by {record.model}, and this server speaks with {self.model}; "
                "upload its clip again"
            )
        return self.store.load(record)

    def _unknown(self, name: str, engine: Intake) -> str:
        shown = name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…"
        names = [choice.name for choice in self.choices(engine)]
        if not names and engine.spec.speaks_without_voice:
            hint = "this checkpoint has no voices, and speaks if none is named"
            hint += "; an upload (POST /v1/audio/voices) or a clip gives it one" * engine.spec.clones
        elif not names and engine.spec.clones:
            hint = "this checkpoint clones: upload a voice (POST /v1/audio/voices), or send a clip with the request"
        else:
            hint = f"there is {_few(names)}"
        return f"no voice {shown!r}; {hint}"


class _Absent(Exception):
    """No upload has that name; the caller decides what to tell the client."""


def _by_key(names: Iterable[str]) -> dict[str, str]:
    return {label_key(name): name for name in names}


def _few(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _SHOWN_CHOICES} more" if len(every) > _SHOWN_CHOICES else ""
    return (", ".join(every[:_SHOWN_CHOICES]) or "none") + more


def _name(voice: str | Mapping[str, object]) -> str:
    if isinstance(voice, Mapping) and set(voice) == {"id"}:
        voice = voice["id"]  # type: ignore[assignment]  # judged below
    if not isinstance(voice, str):
        raise BadRequest('voice must be a name, or an object such as {"id": "voice_1234"}')
    return voice
