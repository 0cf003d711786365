"""The only way from device to host: a ring of pinned slots, filled on a copy stream, one event a slot.

A slot holds one step's records and sound. It is taken again only after its event was waited for and its values
were copied out, so the device never writes what the host still reads.

A graph's next replay overwrites its results, so it is held back until they are copied. Sound may be made on a stream of
its own (codec_stream.py), beside the next step's frames: those wait for the copy of records only, the next sound for
that of sound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sonant.models.spec import Field
from sonant.types import Frames, Samples

CLOCK_VALUES = 6  # of a `WeightClock`


@dataclass(frozen=True)
class SoundShape:
    """The most sound that a step can make, and its type."""

    samples: int
    dtype: torch.dtype


class Slot:
    def __init__(self, records: int, frame: Field, sound: SoundShape, device: torch.device) -> None:
        pinned = device.type == "cuda"
        assert frame.dtype.itemsize == 4, "a record is made of words of 32 bits"
        self.frame = frame
        self.records = torch.empty(records, 1 + math.prod(frame.shape), dtype=torch.int32, pin_memory=pinned)
        self.words = self.records.numpy()  # the same memory
        self.dtype = np.int32 if frame.dtype == torch.int32 else np.float32
        self.sound = torch.empty(sound.samples, dtype=sound.dtype, pin_memory=pinned)
        self.samples = self.sound.numpy()
        self.clock = torch.zeros(CLOCK_VALUES, dtype=torch.int64, pin_memory=pinned)
        # blocking: the step thread sleeps instead of spinning on the driver's lock
        self.sleeping = torch.cuda.Event(blocking=True) if pinned else None
        self.spinning = torch.cuda.Event() if pinned else None
        self.done = self.sleeping
        self.records_copied = torch.cuda.Event() if pinned else None

    def decoded(self, count: int) -> tuple[npt.NDArray[np.int32], Frames]:
        """Statuses and frames of the first `count` records, which hold until the slot is taken again."""
        frames = self.words[:count, 1:].view(self.dtype).reshape(count, *self.frame.shape)
        return self.words[:count, 0], frames

    def take_sound(self, start: int, count: int) -> Samples:
        """A copy of samples [start, start + count) that outlives the slot.

        Not numpy's own, which gives Python's lock away: with 90 chunks the step thread waited 10 ms to have it back.
        """
        return np.frombuffer(bytearray(self.samples[start : start + count].data), self.samples.dtype)

    def is_marked(self, at: int) -> bool:
        """Whether the mark there is set, behind a row of samples that has one."""
        return bool(self.samples[at])


class OutputRing:
    def __init__(self, depth: int, records: int, frame: Field, sound: SoundShape, device: torch.device) -> None:
        self.slots = [Slot(records, frame, sound, device) for _ in range(depth)]
        self.next = 0
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.made = torch.cuda.Event() if device.type == "cuda" else None  # when results are there
        self.last: Slot | None = None  # the one that was sent last

    def send(
        self,
        records: Sequence[Tensor],
        sounds: Sequence[Tensor],
        clock: Tensor | None = None,
        in_haste: bool = False,
        sounds_made: torch.cuda.Event | None = None,
    ) -> Slot:
        """Start copying a step's results; `wait` on the slot before reading it. `clock` is that of paged weights.

        `in_haste`: waiting for it keeps a core busy, and ends some 50 microseconds sooner than a thread is woken.
        `sounds_made`: recorded when sounds are there, if they are made on another stream than the current one.
        """
        slot = self.slots[self.next]
        slot.done = slot.spinning if in_haste else slot.sleeping
        self.next = (self.next + 1) % len(self.slots)
        if self.stream is None or self.made is None:
            self._copy_records(slot, records, clock)
            self._copy_sounds(slot, sounds)
            return slot
        self.made.record(torch.cuda.current_stream(self.stream.device))
        self.stream.wait_event(self.made)
        self.last = slot
        with torch.cuda.stream(self.stream):
            self._copy_records(slot, records, clock)
            assert slot.done is not None and slot.records_copied is not None
            if sounds_made is not None:
                slot.records_copied.record(self.stream)
                self.stream.wait_event(sounds_made)
            self._copy_sounds(slot, sounds)
            slot.done.record(self.stream)
        for tensor in (*records, *sounds):
            tensor.record_stream(self.stream)
        return slot

    def hold_back(self, *, records_only: bool = False) -> None:
        """Make the current stream wait until the last step's results are copied, before a graph overwrites them.

        `records_only`: sound is overwritten on another stream, which is held back by a call of its own.
        """
        if self.stream is None or self.last is None:
            return
        copied = self.last.records_copied if records_only else self.last.done
        assert copied is not None
        torch.cuda.current_stream(self.stream.device).wait_event(copied)

    @staticmethod
    def wait(slot: Slot) -> None:
        if slot.done is not None:
            slot.done.synchronize()

    @staticmethod
    def _copy_records(slot: Slot, records: Sequence[Tensor], clock: Tensor | None) -> None:
        if clock is not None:
            slot.clock.copy_(clock, non_blocking=True)
        row = 0
        for record in records:
            slot.records[row : row + len(record)].copy_(record, non_blocking=True)
            row += len(record)

    @staticmethod
    def _copy_sounds(slot: Slot, sounds: Sequence[Tensor]) -> None:
        start = 0
        for sound in sounds:
            slot.sound[start : start + sound.numel()].view_as(sound).copy_(sound, non_blocking=True)
            start += sound.numel()
