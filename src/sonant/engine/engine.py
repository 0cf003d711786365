"""The engine as callers see it: text in, sound out, from any thread or event loop.

It checks a request, splits long text, lays out the prompt on the caller's own thread, and leaves the rest to the
step thread. Only a prompt that goes on from what was just said is laid out later, see `prompt_thread.py`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy.typing as npt
import torch

from sonant.audio.clip import read_clip
from sonant.config import EngineConfig
from sonant.engine.context import Context
from sonant.engine.long_text import OFFLINE_PARTS_AT_ONCE, LongText
from sonant.engine.loop import StepLoop
from sonant.engine.part_sink import PartSink
from sonant.engine.prompt_thread import PromptThread
from sonant.engine.request import Request, Sink
from sonant.engine.runner import Runner
from sonant.engine.stream import Mailbox, SpeechStream
from sonant.engine.telemetry import EngineStats, Telemetry
from sonant.engine.text_feed import PARTS_AT_ONCE, TextFeed
from sonant.errors import BadRequest, BadText, EngineClosed, Unsupported
from sonant.models.base import SpeechModel
from sonant.text.sentences import check_text, split_text
from sonant.text.turns import with_turns
from sonant.types import MAX_DESCRIPTION_CHARS, Speech, SpeechRequest, Spoken
from sonant.voice import Voice
from sonant.voice_cache import VoiceCache

_REMEMBERED_CLIPS = 64


class Engine:
    """Speaks with one model. Make it with `sonant.load`; close it, or use it in a `with`."""

    def __init__(self, model: SpeechModel, config: EngineConfig, device: torch.device) -> None:
        self.model, self.device = model, device
        config = config.resolved(device.type)
        most = model.spec.segment_chars or config.segment_chars
        self.config = replace(config, segment_chars=min(config.segment_chars, most))
        self.sizes = config.frame_sizes(model.spec.frame_s, model.spec.codec_lookahead)
        self.loop = StepLoop(Runner(model, self.config, self.sizes, device), self.config)
        self._prompts = PromptThread(self.loop)
        self._clones = VoiceCache(_REMEMBERED_CLIPS)
        self._closed = False

    @property
    def sample_rate(self) -> int:
        return self.model.spec.sample_rate

    @property
    def voices(self) -> tuple[str, ...]:
        """Names of the checkpoint's own voices; empty if it clones or designs them."""
        return self.model.spec.voices

    @property
    def languages(self) -> tuple[str, ...]:
        return self.model.spec.languages

    def clone(
        self, clip: str | Path | bytes | tuple[npt.NDArray[Any], int], text: str | None = None, name: str = "clone"
    ) -> Voice:
        """Encode a reference clip (a file, its bytes, or samples and their rate) once, for any number of requests.

        The latest clips are remembered: the same again, or at the same time by another thread, is not encoded anew.
        With `text`, what the clip says, the model continues the clip (closest); without, it takes its timbre only.
        """
        c = self.config
        if text is not None:
            check_text(text, c.segment_chars * 4, "reference text")
        samples = read_clip(clip, sample_rate=self.model.spec.clip_sample_rate, min_s=c.clip_min_s, max_s=c.clip_max_s)
        key = blake2b(samples.tobytes() + b"\0" + (text or "").encode(), digest_size=16).hexdigest()
        voice = self._clones.get(key, lambda: self.model.encode_voice(samples, text, name))
        return voice if voice.name == name else replace(voice, name=name)

    def speak(self, text: str, **options: Any) -> Speech:
        """Say `text` and wait for all of it. Options are the fields of `SpeechRequest`."""
        return self.stream(text, **{"live": False, **options}).result()

    def stream(self, text: str, **options: Any) -> SpeechStream:
        """Say `text`; iterate over the result, with `for` or `async for`, for sound as it is made."""
        return self.submit(SpeechRequest(text=text, **options))

    def check_speakers(self, count: int) -> None:
        """Raise `Unsupported` if the model cannot speak a text of so many."""
        most = self.model.spec.most_speakers
        if most == 1:
            raise Unsupported("this model speaks with one voice at a time; leave speakers out, and give it a voice")
        if count > most:
            raise Unsupported(f"this model speaks with at most {most} speakers in a text, not {count}")

    def submit(self, speech: SpeechRequest) -> SpeechStream:
        """Check a request, lay it out on this thread, and queue it. Raises `BadRequest` with what is wrong."""
        seed = self._check(speech)
        check_text(speech.text, self.config.max_text_chars)
        parts, speaker = self._split(speech.text, "")
        if not parts:
            raise BadText(f"the text names {speaker} and nothing to say; send the words with it")
        return self._submit_one(speech, parts[0], seed) if len(parts) == 1 else self._submit_long(speech, parts, seed)

    def _submit_one(self, speech: SpeechRequest, text: str, seed: int) -> SpeechStream:
        mailbox = Mailbox()
        request = self._part(replace(speech, text=text, seed=seed), 0, mailbox)
        self.loop.post(request)
        prompt, abort = request.prompt, partial(self.loop.abort, [request])
        return SpeechStream(mailbox, seed, self.sample_rate, prompt.length, abort, prompt.opening)

    def _submit_long(self, speech: SpeechRequest, parts: list[str], seed: int) -> SpeechStream:
        mailbox = Mailbox()
        whole = self._long_text(mailbox, speech, 1 if speech.live else OFFLINE_PARTS_AT_ONCE)
        # Parts have their own budgets: cut by the whole's, the last one's sound is that of a text that goes on.
        requests = [
            self._part(replace(speech, text=part, seed=(seed + n) % 2**64, max_frames=None), n, PartSink(whole, n))
            for n, part in enumerate(parts)
        ]
        self.loop.watch(whole)
        whole.start(requests)
        tokens = sum(r.prompt.length for r in requests)
        return SpeechStream(mailbox, seed, self.sample_rate, tokens, lambda: self.loop.abort(whole.abort()))

    def feed(self, speech: SpeechRequest) -> TextFeed:
        """Speak a text that comes bit by bit, as `speech` says but for its text, which is not looked at."""
        seed = self._check(speech)
        mailbox = Mailbox()
        whole = self._long_text(mailbox, speech, PARTS_AT_ONCE)
        self.loop.watch(whole)
        stream = SpeechStream(mailbox, seed, self.sample_rate, 0, lambda: self.loop.abort(whole.abort()))
        return TextFeed(speech, whole, stream, self.config.max_text_chars, self._split, self._piece)

    @property
    def warm_share(self) -> float:
        """The share of CUDA graphs that are captured. Below 1 the engine answers too, large batches less quickly."""
        return self.loop.runner.warmup.share

    @property
    def telemetry(self) -> Telemetry:
        return self.loop.runner.telemetry

    def stats(self) -> EngineStats:
        return self.loop.stats()

    def join(self) -> None:
        """Wait until the step thread has ended, because the engine was closed or has failed."""
        self.loop.join()

    def close(self, *, drain_s: float = 0.0) -> None:
        """Take no more requests, give those in flight `drain_s` seconds to end, abort the rest, stop the thread."""
        self._closed = True
        self.loop.close(drain_s)
        self._prompts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _check(self, speech: SpeechRequest) -> int:
        """Check that it may be queued now, and give its seed."""
        if self._closed:
            raise EngineClosed("the engine is closed; load it again")
        if speech.instruct:
            check_text(speech.instruct, self.config.max_text_chars, "instruct")
        if speech.speakers:
            self.check_speakers(len(speech.speakers))
        for speaker in speech.speakers:
            if isinstance(speaker, str):
                check_text(speaker, MAX_DESCRIPTION_CHARS, "description of a speaker")
        self._check_context(speech.context)
        self.loop.check_room()
        return secrets.randbits(63) if speech.seed is None else speech.seed

    def _check_context(self, said: Sequence[Spoken]) -> None:
        spec = self.model.spec
        if said and not spec.context_segments:
            raise Unsupported("this model does not go on from what was said before; leave context out")
        for piece in said:
            if piece.frames.shape[1:] != spec.frame.shape or not len(piece.frames):
                raise BadRequest(
                    f"frames in context must be [frames, {', '.join(map(str, spec.frame.shape))}] as this model makes "
                    f"them, not {list(piece.frames.shape)}"
                )

    def _split(self, text: str, speaker: str) -> tuple[list[str], str]:
        """Its parts, and of a dialogue who speaks at the end of them; `speaker` does at the beginning."""
        parts = split_text(text, self.config.segment_chars)
        return (parts, "") if self.model.spec.most_speakers == 1 else with_turns(parts, speaker)

    def _long_text(self, sink: Sink, speech: SpeechRequest, at_once: int) -> LongText:
        spec, context = self.model.spec, None
        if spec.context_segments:
            context = Context(spec.context_segments, speech.context, self._go_on, self._prompts)
        most = speech.max_frames
        return LongText(sink, spec, self.loop, at_once=at_once, live=speech.live, context=context, max_frames=most)

    def _piece(self, speech: SpeechRequest, index: int, sink: Sink) -> Request:
        """A part of a feed, which may be all there is: more `max_frames` than its budget are its own, too."""
        request = self._part(replace(speech, max_frames=None), index, sink)
        most = speech.max_frames
        return request if most is None or request.prompt.max_frames >= most else self._part(speech, index, sink)

    def _part(self, speech: SpeechRequest, index: int, sink: Sink) -> Request:
        """Part `index` of a text. The first has the caller's context; what later ones go on from is not said yet."""
        if index:  # the promise is of the first sound, not of every part's
            speech = replace(speech, first_audio_within_s=None)
        request = self._request(replace(speech, context=()), sink)
        return self._go_on(request, speech.context[-self.model.spec.context_segments :]) if index == 0 else request

    def _request(self, speech: SpeechRequest, sink: Sink) -> Request:
        request = Request(speech, self.model.prompt(speech), sink, time.monotonic(), self.model.spec.delay_steps)
        if request.positions > self._room:
            raise BadText(
                f"the request needs {request.positions} positions ({request.prompt.length} of prompt, "
                f"{request.prompt.max_frames} of speech), over the {self._room} that one request may hold; shorten the "
                "text or reference, lower max_frames, or raise max_positions and kv_tokens"
            )
        return request

    def _go_on(self, part: Request, said: Sequence[Spoken]) -> Request:
        """The part after what was said before it: all of that, or the latest of it that there is room for."""
        for first in range(len(said)):
            speech = replace(part.speech, context=tuple(said[first:]))
            request = Request(speech, self.model.prompt(speech), part.sink, part.arrival_s, part.delay_steps)
            if request.positions <= self._room:
                return request
        return part

    @property
    def _room(self) -> int:
        """Positions that one request may hold."""
        c = self.config
        return min(c.max_positions, self.model.spec.max_positions, self.loop.pool.total * c.block_tokens)
