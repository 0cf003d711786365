"""Turns what a caller asks for into requests for a step thread, in this process or in another.

On the caller's own thread a request is checked, a long text is split, and each part is laid out as a prompt; mistakes
are raised there as a `BadRequest`, before any step thread hears of the request. Only a prompt that goes on from what
was just said is laid out later, see `prompt_thread.py`. Nothing here needs the model itself, only its prompter: an HTTP
front end has this half of an engine, and the rest at the other end of a channel.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from sonant.audio.clip import read_clip
from sonant.config import EngineConfig
from sonant.engine.context import Context
from sonant.engine.long_text import OFFLINE_PARTS_AT_ONCE, LongText
from sonant.engine.part_layout import lay_out_parts
from sonant.engine.part_sink import PartSink
from sonant.engine.prompt_thread import PromptThread
from sonant.engine.request import Request, Sink
from sonant.engine.step_queue import StepQueue
from sonant.engine.stream import Mailbox, SpeechStream
from sonant.engine.text_feed import PARTS_AT_ONCE, TextFeed
from sonant.errors import BadRequest, BadText, EngineClosed, Unsupported
from sonant.models.prompt import Prompt, Prompter
from sonant.models.speech_spec import SpeechSpec
from sonant.text.sentences import check_text, split_text
from sonant.text.turns import with_turns
from sonant.types import MAX_DESCRIPTION_CHARS, Samples, Speech, SpeechRequest, Spoken

Clip = str | Path | bytes | tuple[npt.NDArray[Any], int]
"""A file, its bytes, or samples and their rate."""


class Intake:
    """Takes requests for one model; `Engine` is an intake with its own step thread."""

    def __init__(self, prompter: Prompter, config: EngineConfig, steps: StepQueue, most_positions: int) -> None:
        """`most_positions`: how many one request may hold in the cache."""
        self.prompter, self.steps, self.most_positions = prompter, steps, most_positions
        most_chars = prompter.spec.segment_chars or config.segment_chars
        self.config = replace(config, segment_chars=min(config.segment_chars, most_chars))
        self._prompts = PromptThread(steps)
        self._closed = False

    @property
    def spec(self) -> SpeechSpec:
        return self.prompter.spec

    @property
    def sample_rate(self) -> int:
        return self.spec.sample_rate

    @property
    def voices(self) -> tuple[str, ...]:
        """Names of the checkpoint's own voices; empty if it clones or designs voices."""
        return self.spec.voices

    @property
    def languages(self) -> tuple[str, ...]:
        return self.spec.languages

    def speak(self, text: str, **options: Any) -> Speech:
        """Say `text` and wait for all of it. Options are the fields of `SpeechRequest`."""
        return self.stream(text, **{"live": False, **options}).result()

    def stream(self, text: str, **options: Any) -> SpeechStream:
        """Say `text`. Iterate over the result, with `for` or `async for`, to get sound as it is made."""
        return self.submit(SpeechRequest(text=text, **options))

    def check_speakers(self, count: int) -> None:
        """Raise `Unsupported` if the model cannot speak a text of this many speakers."""
        most = self.spec.most_speakers
        if most == 1:
            raise Unsupported("this model speaks with one voice at a time; leave speakers out, and give it a voice")
        if count > most:
            raise Unsupported(f"this model speaks with at most {most} speakers in a text, not {count}")

    def read_clip(self, clip: Clip, text: str | None) -> Samples:
        """A reference clip as the model takes it; it is checked, and its text too, if there is one."""
        c = self.config
        if text is not None:
            check_text(text, c.segment_chars * 4, "reference text")
        return read_clip(clip, sample_rate=self.spec.clip_sample_rate, min_s=c.clip_min_s, max_s=c.clip_max_s)

    def submit(self, speech: SpeechRequest) -> SpeechStream:
        """Check a request, lay it out on this thread, and queue it. Raises `BadRequest` if something is wrong."""
        seed = self._check(speech)
        check_text(speech.text, self.config.max_text_chars)
        parts, speaker = self._split(speech.text, "")
        if not parts:
            raise BadText(f"the text names {speaker} and nothing to say; send the words with it")
        return self._submit_one(speech, parts[0], seed) if len(parts) == 1 else self._submit_long(speech, parts, seed)

    def _submit_one(self, speech: SpeechRequest, text: str, seed: int) -> SpeechStream:
        mailbox = Mailbox()
        request = self._part(replace(speech, text=text, seed=seed), 0, mailbox)
        self.steps.post(request)
        prompt, abort = request.prompt, partial(self.steps.abort, [request])
        return SpeechStream(
            mailbox, seed, self.sample_rate, prompt.length, abort, self.steps.drop, self._opening(prompt)
        )

    def _submit_long(self, speech: SpeechRequest, parts: list[str], seed: int) -> SpeechStream:
        mailbox = Mailbox()
        whole = self._long_text(mailbox, speech, 1 if speech.live else OFFLINE_PARTS_AT_ONCE)
        requests = lay_out_parts(speech, seed, parts, 0, lambda part, n: self._own_budget(part, n, PartSink(whole, n)))
        self.steps.watch(whole)
        whole.start(requests)
        tokens = sum(r.prompt.length for r in requests)
        return self._stream_of(whole, mailbox, seed, tokens)

    def feed(self, speech: SpeechRequest) -> TextFeed:
        """Speak a text that comes bit by bit, with the options of `speech`, whose own text is ignored."""
        seed = self._check(speech)
        mailbox = Mailbox()
        whole = self._long_text(mailbox, speech, PARTS_AT_ONCE)
        self.steps.watch(whole)
        stream = self._stream_of(whole, mailbox, seed, 0)
        return TextFeed(speech, whole, stream, self.config.max_text_chars, self._split, self._piece)

    def _stream_of(self, whole: LongText, mailbox: Mailbox, seed: int, tokens: int) -> SpeechStream:
        def abort() -> None:
            self.steps.abort(whole.abort())

        return SpeechStream(mailbox, seed, self.sample_rate, tokens, abort, self.steps.drop)

    def _opening(self, prompt: Prompt) -> Callable[[int], Samples] | None:
        """Gives what a whole result of so many frames begins with. None: nothing, or no model here to make it."""
        return None

    def _check(self, speech: SpeechRequest) -> int:
        """Check that it may be queued now → its seed."""
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
        self.steps.check_room()
        return secrets.randbits(63) if speech.seed is None else speech.seed

    def _check_context(self, said: Sequence[Spoken]) -> None:
        spec = self.spec
        if said and not spec.context_segments:
            raise Unsupported("this model does not go on from what was said before; leave context out")
        for piece in said:
            if piece.frames.shape[1:] != spec.frame_shape or not len(piece.frames):
                raise BadRequest(
                    f"frames in context must be [frames, {', '.join(map(str, spec.frame_shape))}] as this model makes "
                    f"them, not {list(piece.frames.shape)}"
                )

    def _split(self, text: str, speaker: str) -> tuple[list[str], str]:
        """The parts of a text and, in a dialogue, who speaks at their end; `speaker` speaks at their beginning."""
        parts = split_text(text, self.config.segment_chars)
        return (parts, "") if self.spec.most_speakers == 1 else with_turns(parts, speaker)

    def _long_text(self, sink: Sink, speech: SpeechRequest, at_once: int) -> LongText:
        spec, context = self.spec, None
        if spec.context_segments:
            context = Context(spec.context_segments, speech.context, self._go_on, self._prompts)
        most = speech.max_frames
        return LongText(sink, spec, self.steps, at_once=at_once, live=speech.live, context=context, max_frames=most)

    def _piece(self, speech: SpeechRequest, index: int, sink: Sink) -> Request:
        """A part of a feed. It may be the only one, so `max_frames` over its own budget become its budget."""
        request, most = self._own_budget(speech, index, sink), speech.max_frames
        return request if most is None or request.prompt.max_frames >= most else self._part(speech, index, sink)

    def _own_budget(self, speech: SpeechRequest, index: int, sink: Sink) -> Request:
        """A part with its own budget, since `max_frames` bound the text as a whole: cut off by them, a part must sound
        as if it went on. If its budget has no room `max_frames` take its place, as no more of it can be heard."""
        try:
            return self._part(replace(speech, max_frames=None), index, sink)
        except BadText:
            if speech.max_frames is None:
                raise
            return self._part(speech, index, sink)

    def _part(self, speech: SpeechRequest, index: int, sink: Sink) -> Request:
        """Part `index` of a text. The first has the caller's context; that of later ones is yet to be said."""
        if index:  # the limit is for the text's first sound, not for every part's
            speech = replace(speech, first_audio_within_s=None)
        request = self._request(replace(speech, context=()) if speech.context else speech, sink)
        return self._go_on(request, speech.context[-self.spec.context_segments :]) if index == 0 else request

    def _request(self, speech: SpeechRequest, sink: Sink) -> Request:
        request = Request(speech, self.prompter.prompt(speech), sink, time.monotonic(), self.spec.delay_steps)
        if request.positions > self.most_positions:
            raise BadText(
                f"the request needs {request.positions} positions ({request.prompt.length} of prompt, "
                f"{request.prompt.max_frames} of speech), over the {self.most_positions} that one request may hold; "
                "shorten the text or reference, lower max_frames, or raise max_positions and kv_tokens"
            )
        return request

    def _go_on(self, part: Request, said: Sequence[Spoken]) -> Request:
        """The part with what was said before it as context: all of that, or the latest of it that there is room for."""
        for first in range(len(said)):
            speech = replace(part.speech, context=tuple(said[first:]))
            request = Request(speech, self.prompter.prompt(speech), part.sink, part.arrival_s, part.delay_steps)
            if request.positions <= self.most_positions:
                return request
        return part
