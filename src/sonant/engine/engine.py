"""The engine as callers see it: text in, sound out, from any thread or event loop.

Requests come in through its `Intake`, on the caller's own thread; the rest is the step thread's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from types import TracebackType
from typing import Self

import torch

from sonant.config import EngineConfig
from sonant.engine.beginning import Beginning
from sonant.engine.intake import Clip, Intake
from sonant.engine.loop import StepLoop
from sonant.engine.runner import Runner
from sonant.engine.telemetry import EngineStats, Telemetry
from sonant.engine.weight_floor import measured_floor
from sonant.kernels.gpu import beside_steps
from sonant.models.base import SpeechModel
from sonant.models.prompt import Prompt
from sonant.types import Samples, SoundFormat
from sonant.voice import Voice
from sonant.voice_cache import VoiceCache

_REMEMBERED_CLIPS = 64


class Engine(Intake):
    """Speaks with one model. Make it with `sonant.load`; close it, or use it in a `with`."""

    def __init__(
        self,
        model: SpeechModel,
        config: EngineConfig,
        device: torch.device,
        sound: SoundFormat = "float32",
        beginning: Beginning | None = None,
    ) -> None:
        self.model, self.device, self.sound = model, device, sound
        beginning = beginning or Beginning.with_weights(device)
        config = config.resolved(None if beginning.memory is None else beginning.memory.room(model.spec))
        self.sizes = config.frame_sizes(model.spec.frame_s, model.spec.codec_lookahead)
        self.start_times = beginning.times
        paging = beginning.paging
        sleeper = beginning.sleeper
        residents = None if sleeper is None else sleeper.residents
        runner = Runner(model, config, self.sizes, device, sound, beginning.times, beginning.kernels, paging, residents)
        self.weight_floor = None if paging is None else measured_floor(runner, paging.plan)
        self.loop = StepLoop(runner, config, sleeper)
        room = self.loop.pool.total * config.block_tokens
        super().__init__(model.prompter, config, self.loop, min(config.max_positions, model.spec.max_positions, room))
        self._clones = VoiceCache(_REMEMBERED_CLIPS)
        self._paging = paging

    def _opening(self, prompt: Prompt) -> Callable[[int], Samples] | None:
        return partial(self._open, prompt)

    def _open(self, prompt: Prompt, frames: int) -> Samples:
        with self._beside_steps():
            return self.model.opening(prompt, frames)

    def awake(self) -> AbstractContextManager[None]:
        """Weights are on the device meanwhile: for any thread but the step thread."""
        sleeper = self.loop.sleeper
        return nullcontext() if sleeper is None else sleeper.held_awake()

    @contextmanager
    def _beside_steps(self) -> Iterator[None]:
        """For work of the model on any thread but the step thread. Triton launches on a thread's current device, which
        is the first GPU unless something says otherwise."""
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with self.awake(), beside_steps(), on_device:
            yield

    def clone(self, clip: Clip, text: str | None = None, name: str = "clone") -> Voice:
        """Encode a reference clip (a file, its bytes, or samples and their rate) once, for any number of requests.

        The latest clips are remembered: the same again, or at the same time by another thread, is not encoded anew.
        With `text`, what the clip says, the model continues the clip (closest); without, it takes its timbre only.
        """
        return self.encode(self.read_clip(clip, text), text, name)

    def encode(self, samples: Samples, text: str | None, name: str) -> Voice:
        """The voice of a clip that `read_clip` has read."""
        key = blake2b(samples.tobytes() + b"\0" + (text or "").encode(), digest_size=16).hexdigest()
        voice = self._clones.get(key, lambda: self._encoded(samples, text, name))
        return voice if voice.name == name else replace(voice, name=name)

    def _encoded(self, samples: Samples, text: str | None, name: str) -> Voice:
        with self._beside_steps():
            encode = self.model.encode_voice
            return (encode if self._paging is None else self._paging.beside(encode))(samples, text, name)

    @property
    def warm_share(self) -> float:
        """The share of CUDA graphs that are captured. Below 1 the engine answers too, large batches less quickly."""
        return self.loop.runner.graphs.warmup.share

    @property
    def host_weight_bytes(self) -> int:
        """Of weights that do not stay on the device."""
        paging = self.loop.runner.paging
        return 0 if paging is None else paging.plan.host_bytes

    @property
    def telemetry(self) -> Telemetry:
        return self.loop.runner.telemetry

    def stats(self) -> EngineStats:
        return self.loop.stats()

    def join(self) -> None:
        """Wait until the step thread has ended, because the engine was closed or has failed."""
        self.loop.join()

    def stop(self) -> None:
        """Ask the step thread to end, and cut off what is in flight, without waiting for it: from a signal, say."""
        self._closed = True
        threading.Thread(target=self.loop.close, args=(0.0,), name="sonant-stop", daemon=True).start()

    def close(self, *, drain_s: float = 0.0) -> None:
        """Take no more requests, give those in flight `drain_s` seconds to end, abort the rest, stop the thread."""
        self._closed = True
        self.loop.close(drain_s)
        self._prompts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
