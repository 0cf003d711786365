"""Where sound is made: behind a step's frames on the same stream, or on a stream of its own (`codec_stream`).

On its own stream the codec of step n runs beside the prompts and frames of step n + 1: those are many small kernels
that wait for each other, the codec's are few and large. These things make it safe:

- **Only two steps meet.** With `steps_ahead` 1 step n is collected, sound and all, before step n + 2 is launched.
- **What the codec reads is not overwritten.** A row decodes only while fewer than `ring - 1` of its frames wait for
  the codec (`Scheduler._plan_decode`), so frames that codec n was given and the one that step n + 1 draws have
  different places in a ring of `ring` frames. Rings that also keep frames from before are longer by those.
- **Counters that frames move meanwhile do not matter.** A codec asks how many frames a row has to leave out what lies
  past a last chunk. Of a row that goes on, all frames that it reads are there; one that has ended counts no more.
- **A row has one user.** It goes to another request when every step that uses it was collected, or by being parked:
  before a row is copied aside, the steps wait for a codec that has it (`wait_for`).
- **All work of the codec is here**, that on a voice's own sound (`preroll`) too: products that split their depth keep
  counters with their weights (kernels/triton/split_k.py), which one launch at a time may use.
- **Graphs of the codec have a pool of their own** (`GraphPool`): those of one pool work in the same memory.
- **Results are copied before the next replay**, frames' and sound's apart (output.py).
- Memory that a step allocates is of the stream that it allocates it on, and is used there alone but for the copies of
  results, which torch is told of. Row numbers are sent on the stream whose graph reads them.

Prompts and frames go before sound where both wait for a processor: theirs is the high priority, since the whole step
waits for a chain of them. It must be that of the streams that graphs are captured on, too, whose kernels keep it.
Somebody's first sound is waited for, though. With few rows a step is short whatever its order, and its frames may be
kernels that take all processors and wait for them; so such steps keep their order, and with more rows those that make
a first sound. With many, nearly every step makes one, and would gain nothing: there it shares the GPU with the next
frames, and is made up for by the shorter steps before it.

Weights that come and go have slots that one pass at a time may use, so there is one stream then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

HIGH_PRIORITY = -1

_FEW_ROWS = 8  # in a step that keeps its order …
_FIRST_SOUND_ROWS = 48  # … and in one that makes somebody's first sound: with 64 rows it would cost 5 %


class CodecStream:
    def __init__(self, device: torch.device, own: bool) -> None:
        """`own`: on a GPU it has a stream beside that of the steps."""
        self.device = device
        self.stream = torch.cuda.Stream(device) if own and device.type == "cuda" else None
        self.few_rows, self.first_sound_rows = _FEW_ROWS, _FIRST_SOUND_ROWS
        self._given = None if self.stream is None else torch.cuda.Event()  # when what it reads is there
        self.made = None if self.stream is None else torch.cuda.Event()  # when all that was launched here is done
        self._rows: set[int] = set()  # of the last step, whose sound may still be in the making

    @property
    def priority(self) -> int:
        """The priority of all other work of a step."""
        return 0 if self.stream is None else HIGH_PRIORITY

    @contextmanager
    def behind_the_step(self, rows: Iterable[int]) -> Iterator[None]:
        """What is launched inside comes after all that the step has launched so far, and works on these rows."""
        if self.stream is None or self._given is None or self.made is None:
            yield
            return
        self._given.record(torch.cuda.current_stream(self.device))
        self.stream.wait_event(self._given)
        self._rows.update(rows)
        with torch.cuda.stream(self.stream):
            yield
            self.made.record(self.stream)

    def keeps_order(self, rows: int, first_sound: bool) -> bool:
        """Whether a step of so many rows is over before the next begins."""
        return rows <= (self.first_sound_rows if first_sound else self.few_rows)

    def begin_step(self) -> None:
        """Only the last step's sound may still be in the making: the one before it is collected."""
        self._rows.clear()

    def wait_for(self, row: int) -> None:
        """Make the steps' stream wait until the sound of this row is made."""
        if row in self._rows:
            self.wait()

    def wait(self) -> None:
        """… of all rows."""
        if self.stream is not None and self.made is not None:
            torch.cuda.current_stream(self.device).wait_event(self.made)
            self._rows.clear()
