"""The only way from device to host: a ring of pinned slots, filled on a copy stream, one event a slot.

A slot holds one step's records and sound. It is taken again only after its event was waited for and its values
were copied out, so the device never writes what the host still reads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sonant.types import Samples


class Slot:
    def __init__(
        self, records: int, record_width: int, frames: int, samples_per_frame: int, device: torch.device
    ) -> None:
        pinned = device.type == "cuda"
        self.records = torch.empty(records, record_width, dtype=torch.int32, pin_memory=pinned)
        self.sound = torch.empty(frames * samples_per_frame, dtype=torch.float32, pin_memory=pinned)
        # blocking: the step thread sleeps instead of spinning on the driver's lock
        self.done = torch.cuda.Event(blocking=True) if pinned else None


class OutputRing:
    def __init__(
        self, depth: int, records: int, record_width: int, frames: int, samples_per_frame: int, device: torch.device
    ) -> None:
        self.slots = [Slot(records, record_width, frames, samples_per_frame, device) for _ in range(depth)]
        self.next = 0
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, records: Tensor | None, sounds: list[Tensor]) -> Slot:
        """Start copying a step's results; `wait` on the slot before reading it."""
        slot = self.slots[self.next]
        self.next = (self.next + 1) % len(self.slots)
        if self.stream is None:
            self._copy(slot, records, sounds)
            return slot
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            self._copy(slot, records, sounds)
            assert slot.done is not None
            slot.done.record(self.stream)
        for tensor in ([] if records is None else [records]) + sounds:
            tensor.record_stream(self.stream)
        return slot

    def hold_back(self) -> None:
        """Make the device finish copying the last step's results before a graph overwrites them."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)

    @staticmethod
    def wait(slot: Slot) -> None:
        if slot.done is not None:
            slot.done.synchronize()

    @staticmethod
    def _copy(slot: Slot, records: Tensor | None, sounds: list[Tensor]) -> None:
        if records is not None:
            slot.records[: len(records)].copy_(records, non_blocking=True)
        start = 0
        for sound in sounds:
            slot.sound[start : start + sound.numel()].view_as(sound).copy_(sound, non_blocking=True)
            start += sound.numel()


def take_sound(slot: Slot, start: int, count: int) -> Samples:
    """A copy of samples [start, start + count) that outlives the slot."""
    return slot.sound[start : start + count].numpy().copy()
