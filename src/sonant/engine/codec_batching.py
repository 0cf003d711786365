"""Whose sound is made in a step, and how many frames of each.

A call of the codec takes one chunk size. On a CPU its time grows with the frames in it, so sound is made when it is
due, as long as the listener with the least buffered can wait for that of others. A GPU takes much the same time for one
row as for eight, so there those who can wait do until a call is worth it. Otherwise listeners, who begin at different
times, would each have calls of their own, and a step would have one of every chunk size.
"""

from __future__ import annotations

import numpy as np

from sonant.config import FrameSizes
from sonant.engine.ledger import OFFLINE_SLACK_S, Column, Ledger, Places
from sonant.engine.request import State
from sonant.engine.telemetry import Telemetry
from sonant.models.spec import ModelSpec

FIRST_STEPS = 2.0  # that a first chunk must last for on a CPU
WORTH = 0.25  # of a full call: a larger one costs hardly less a frame, and holds up those who come meanwhile
PATIENCE_S, PATIENCE_STEPS = 0.06, 4.0  # with so much and so many steps' time buffered one can wait a step


class CodecBatching:
    def __init__(self, spec: ModelSpec, sizes: FrameSizes, ledger: Ledger, telemetry: Telemetry) -> None:
        self.spec, self.sizes, self.ledger, self.telemetry = spec, sizes, ledger, telemetry
        self.patience_s = PATIENCE_S  # for benchmarks: with infinity nobody waits
        self._chunks = np.array(sizes.chunks)

    def plan(self, sitting: Places, now_s: float) -> tuple[Places, Column]:
        """Whose sound to make, of those with rows, and how many frames of each: one of the chunk sizes."""
        slacks_s = self.ledger.slacks_s(sitting, now_s, self.spec.frame_s)
        frames = self._gathered(sitting, self.chunks_due(sitting, slacks_s), slacks_s)
        due, frames = sitting[frames > 0], frames[frames > 0]
        room = self.frames_within(float(slacks_s.min(initial=OFFLINE_SLACK_S)))  # before anybody runs dry
        if frames.sum() > min(self.sizes.codec_batch, room):
            return self._that_fit(due, frames, room, now_s)
        return due, frames

    def frames_within(self, seconds: float) -> float:
        """How many can be vocoded in that time, after a decode step. On a GPU any number: it takes next to no time."""
        decode_s, vocode_s = self.telemetry.decode_s.value, self.telemetry.vocode_s.value
        return max(0.0, (seconds - decode_s) / vocode_s) if vocode_s else float("inf")

    def chunks_due(self, sitting: Places, slacks_s: Column) -> Column:
        """How many frames of each to vocode now, one of the chunk sizes; 0: not yet.

        A listener's first chunk is one frame, or on a CPU as many as last for two steps of all with rows: otherwise
        the second might come too late. Later ones grow to half of what is buffered, or on a GPU to what is decoded by
        now. The last chunk may reach past the end: what lies there is dropped, and the row's state is not needed
        again. Until the end is known, a chunk waits for the frames that the codec looks ahead.
        """
        ledger, sizes, state = self.ledger, self._chunks, self.ledger.state[sitting]
        vocoded, most = ledger.vocoded[sitting], len(self._chunks) - 1
        left = ledger.total[sitting] - vocoded
        last = np.where(left > 0, sizes[np.minimum(np.searchsorted(sizes, left), most)], 0)
        ready = self._waiting(sitting) - self.spec.codec_lookahead
        new, wanted = np.isneginf(slacks_s), slacks_s / self.spec.frame_s / 2
        if not self._on_host:
            wanted = np.where(new, wanted, np.maximum(wanted, ready))
        largest = np.searchsorted(sizes, wanted, side="right") - 1
        step_s = self.telemetry.decode_s.value + len(sitting) * self.telemetry.vocode_s.value
        first = min(int(np.searchsorted(sizes, FIRST_STEPS * step_s / self.spec.frame_s)), most)
        least = np.where(new & (vocoded == 0), first, 0)
        want = sizes[np.where(ledger.live[sitting], np.maximum(largest, least), most)]
        next_one = np.where(ready >= want, want, 0)
        return np.where(state == State.DRAINING, last, np.where(state == State.DECODING, next_one, 0))

    @property
    def _on_host(self) -> bool:
        """Only there is it measured what the sound of a frame takes."""
        return self.telemetry.vocode_s.value > 0

    def _waiting(self, places: Places) -> Column:
        """Frames that are decoded, or will be in this step, and wait for the codec."""
        return self.ledger.frames_launched(places, self.spec.delay_steps) - self.ledger.vocoded[places]

    def _gathered(self, sitting: Places, frames: Column, slacks_s: Column) -> Column:
        """`frames`, but 0 for those whose call is not worth making yet.

        A call waits only if everybody in it can: a listener with little buffered cannot, nor a row whose ring is about
        to be full, which could not go on decoding. Where few decode, half of what they could give is enough; files
        alone wait for a full call.
        """
        if self._on_host or not frames.any():
            return frames
        ledger, sizes = self.ledger, self.sizes
        decoding = ledger.state[sitting] == State.DECODING
        full = sizes.codec_batch * (WORTH if ledger.live[sitting].any() else 1)
        worth = min(full, int(decoding.sum()) * sizes.chunks[-1] / 2)
        patient = slacks_s > self.patience_s + PATIENCE_STEPS * self.telemetry.step_s.value
        patient &= ~decoding | (self._waiting(sitting) < sizes.ring - 2)
        gathered = frames.copy()
        for size in np.unique(frames[frames > 0]):
            call = frames == size
            if patient[call].all() and frames[call].sum() < worth:
                gathered[call] = 0
        self._take_along(sitting, gathered, (gathered < frames) & ~decoding)
        return gathered

    def _take_along(self, sitting: Places, gathered: Column, ended: Column) -> None:
        """Add rows that have ended to calls that are made anyway: a listener's to one that takes all it has left, a
        file's to any, since it might wait for a large call in vain where listeners have small ones only."""
        made = np.unique(gathered[gathered > 0])
        if not len(made) or not ended.any():
            return
        of = sitting[ended]
        left = self.ledger.total[of] - self.ledger.vocoded[of]
        large_enough = np.searchsorted(made, left)
        largest = np.where(self.ledger.live[of], 0, made[-1])
        gathered[ended] = np.where(large_enough < len(made), made[np.minimum(large_enough, len(made) - 1)], largest)

    def _that_fit(self, due: Places, frames: Column, room: float, now_s: float) -> tuple[Places, Column]:
        """As many as fit, by need. Where time is short, chunks are smaller; the smallest is made in any case for the
        first in need, for one that wants no larger, and for a row that cannot decode on. First chunks stay whole."""
        of, ledger = dict(zip(due.tolist(), frames.tolist(), strict=True)), self.ledger
        no_more = (self._waiting(due) >= self.sizes.ring - 1) | (ledger.state[due] == State.DRAINING)
        full = set(due[no_more].tolist())
        new = set(due[ledger.live[due] & (ledger.vocoded[due] == 0)].tolist())
        smallest, budget, taken = self.sizes.chunks[0], self.sizes.codec_batch, dict[int, int]()
        for place in ledger.by_need(due, now_s, self.spec.frame_s).tolist():
            want, fits = of[place], min(budget, room)
            least = want if place in new else smallest
            if want > fits and room < float("inf") and place not in new:
                urgent = not taken or place in full
                want = max((n for n in self.sizes.chunks if n <= fits), default=smallest if urgent else want)
            if want <= budget and (want <= room or want == least):
                taken[place] = want
                budget, room = budget - want, room - want
        return np.array([*taken], np.intp), np.array([*taken.values()], np.int64)
