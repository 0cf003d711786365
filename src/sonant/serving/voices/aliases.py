"""Other names for voices: OpenAI's thirteen, which its clients send whatever the model, and those an operator sets.

OpenAI's names keep their gender if that of the checkpoint's voices is known: onyx and echo are men, nova and shimmer
women, and authors of apps chose them for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sonant import strict
from sonant.errors import ConfigError
from sonant.serving.voices.labels import label_key

OPENAI_VOICES = (
    "alloy",
    "ash",
    "ballad",
    "coral",
    "echo",
    "fable",
    "onyx",
    "nova",
    "sage",
    "shimmer",
    "verse",
    "marin",
    "cedar",
)
# The most requested names come first, so that they get a voice of their own first. The other names are neither's.
_OPENAI_WOMEN = ("nova", "shimmer", "coral", "sage", "marin")
_OPENAI_MEN = ("onyx", "echo", "ash", "cedar", "ballad")
# Voices of published checkpoints and our own, by the gender they are meant to sound like. Those that speak a
# dialect come last.
_WOMEN = ("vivian", "serena", "sohee", "ono_anna", "heart", "bella")
_MEN = ("ryan", "aiden", "uncle_fu", "dylan", "eric", "michael", "fenrir")


def aliases(own: Sequence[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The voice of each alias: OpenAI's names in their order, if there are voices, then `given`, which override them.

    The first name stands for the first voice. If no voice's gender is known, the names are spread evenly over the
    voices.
    """
    found = {name: own[n * len(own) // len(OPENAI_VOICES)] for n, name in enumerate(OPENAI_VOICES) if own}
    by_key = {label_key(name): name for name in own}
    women, men = ([by_key[name] for name in known if name in by_key] for known in (_WOMEN, _MEN))
    if women or men:
        others = [name for name in own if name not in women and name not in men]
        for names, voices in ((_OPENAI_WOMEN, women or others), (_OPENAI_MEN, men or others)):
            found |= {name: voices[n % len(voices)] for n, name in enumerate(names) if voices}
    return {**found, **{label_key(name): by_key.get(label_key(to), to) for name, to in (given or {}).items()}}


def parsed_aliases(given: Sequence[str]) -> dict[str, str]:
    """Parse strings of NAME=VOICE; raise `ConfigError` for any other."""
    found: dict[str, str] = {}
    for line in given:
        name, equals, voice = (part.strip() for part in line.partition("="))
        if not (name and equals and voice):
            raise ConfigError(f"a voice alias is NAME=VOICE, such as onyx=ryan, not {line!r}")
        found[name] = voice
    return found


def check_aliases(own: Sequence[str], given: Mapping[str, str], uploads: bool) -> None:
    """Raise `ConfigError` if an alias takes a voice's own name, or stands for no voice and there are no `uploads`."""
    by_key = {label_key(name): name for name in own}
    for name, voice in given.items():
        if label_key(name) in by_key:
            raise ConfigError(f"{name!r} cannot be an alias: a voice of this model has that name")
        if label_key(voice) not in by_key and not uploads:
            hint = strict.did_you_mean(voice, own) or f"; there is {', '.join(own) or 'none'}"
            raise ConfigError(f"the alias {name!r} is for {voice!r}, which is no voice of this model{hint}")


def reserved_names(own: Sequence[str], given: Mapping[str, str] | None = None) -> frozenset[str]:
    """Names that an upload must not take, since they already mean something on this server."""
    return frozenset((*own, *aliases(own, given)))
