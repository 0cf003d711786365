"""The numbers of all admitted requests in columns, so that a step plans and books hundreds of them at once.

A request has a place here from its admission to its end, whichever row it has meanwhile, so a step that comes back
finds whom it was for. What changes with every step is stored here only; what changes rarely is stored in the request,
with a copy here. `Counted` and `Shown` are the descriptors by which a request has the two. Only the step thread writes;
other threads may read, and may see a step half booked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sonant.models.status import Status

if TYPE_CHECKING:
    from sonant.engine.request import Request

Places = npt.NDArray[np.intp]
Column = npt.NDArray[Any]
T = TypeVar("T")

_COUNTED = ("launched", "vocoded", "collected", "primed", "emitted", "steps_in_flight")
_SHOWN = {
    "state": np.int8, "row": np.intp, "row_s": np.float64, "tenure_at": np.int64, "since_s": np.float64,
    "first_audio_s": np.float64, "heard_s": np.float64, "total": np.int64, "abort_requested": np.bool_,
}  # fmt: skip
_FIXED = {
    "live": np.bool_, "priority": np.int64, "variant": np.int64, "arrival_s": np.float64, "step_limit": np.int64,
    "playback_speed": np.float64, "prefill_length": np.int64, "keeps_frames": np.bool_,
}  # fmt: skip
_FEWEST = 64
OFFLINE_SLACK_S = 5.0  # the slack that a request for a file counts with, since nobody listens


class Booked(NamedTuple):
    """What came of a step's records, by their place in it."""

    first: Column  # records that are their request's first
    frames: Column  # … that completed a frame of speech
    ends: Column  # … that ended their request


class Ledger:
    launched: Column
    vocoded: Column
    collected: Column
    primed: Column
    emitted: Column
    steps_in_flight: Column
    first_step_s: Column
    state: Column
    row: Column
    row_s: Column
    tenure_at: Column
    since_s: Column
    first_audio_s: Column  # -inf: nothing was heard yet
    heard_s: Column
    total: Column  # -1: not known yet
    abort_requested: Column
    live: Column
    priority: Column
    variant: Column
    arrival_s: Column
    step_limit: Column
    playback_speed: Column
    prefill_length: Column
    keeps_frames: Column
    _counted: Column  # all that steps count: a row for each of `_COUNTED`

    def __init__(self) -> None:
        self._requests: list[Request | None] = []
        self._free: list[int] = []
        self._grow(_FEWEST)

    def enter(self, request: Request) -> int:
        """Give a request a place, with nothing counted yet; the request then fills in the columns of `Shown`."""
        if not self._free:
            self._grow(2 * len(self._requests))
        place = self._free.pop()
        self._requests[place] = request
        self._counted[:, place] = 0
        self.first_step_s[place] = 0.0
        for name in _FIXED:
            getattr(self, name)[place] = getattr(request, name)
        return place

    def leave(self, place: int) -> None:
        self._requests[place] = None
        self.row[place] = -1
        self._free.append(place)

    def at(self, place: int) -> Request:
        request = self._requests[place]
        assert request is not None, "nobody has this place"
        return request

    def all_at(self, places: Iterable[int]) -> list[Request]:
        return [self.at(place) for place in places]

    def with_rows(self) -> Places:
        return np.flatnonzero(self.row >= 0)

    def frames_launched(self, places: Places, delay_steps: int) -> Column:
        """With a delay pattern the first steps complete no frame."""
        return np.maximum(self.launched[places] - delay_steps, 0)

    def dry_s(self, places: Places, frame_s: float) -> Column:
        """When each listener will have heard all that was vocoded; -inf: they have heard nothing yet."""
        sound_s = self.heard_s[places] + self.vocoded[places] * frame_s
        return self.first_audio_s[places] + sound_s / self.playback_speed[places]

    def slacks_s(self, places: Places, now_s: float, frame_s: float) -> Column:
        """How much sound each listener still has buffered."""
        return np.where(self.live[places], self.dry_s(places, frame_s) - now_s, OFFLINE_SLACK_S)

    def by_need(self, places: Places, now_s: float, frame_s: float) -> Places:
        """By priority, then those first who have the least buffered."""
        return places[np.lexsort((self.slacks_s(places, now_s, frame_s), -self.priority[places]))]

    def book(self, places: Places, statuses: Column, now_s: float) -> Booked:
        """Count what decode steps came to. Steps launched before their request's end was known count for nothing."""
        known = self.total[places] >= 0
        running, last = statuses == int(Status.RUNNING), statuses == int(Status.LAST)
        priming = statuses == int(Status.PRIMING)
        frames = ~known & (running | last)
        first = ~known & (self.first_step_s[places] == 0)
        self.collected[places[frames]] += 1
        self.primed[places[~known & priming]] += 1
        self.first_step_s[places[first]] = now_s
        return Booked(np.flatnonzero(first), np.flatnonzero(frames), np.flatnonzero(~(known | running | priming)))

    def over(self, places: Places) -> list[Request]:
        """Those of them that were aborted, or whose sound has all been handed over."""
        spoken = (self.total[places] >= 0) & (self.emitted[places] >= self.total[places])
        return self.all_at(places[spoken | self.abort_requested[places]])

    def _grow(self, size: int) -> None:
        """`row` grows last: other threads read it first, and so find no place that another column has not got yet."""
        before = len(self._requests)
        counted = np.zeros((len(_COUNTED), size), np.int64)
        if before:
            counted[:, :before] = self._counted
        self._counted = counted
        for name, column in zip(_COUNTED, counted, strict=True):
            setattr(self, name, column)
        kinds = {"first_step_s": np.float64, **_SHOWN, **_FIXED}
        for name in (*(kinds.keys() - {"row"}), "row"):
            column = np.full(size, -1 if name == "row" else 0, kinds[name])
            if before:
                column[:before] = getattr(self, name)
            setattr(self, name, column)
        self._requests += [None] * (size - before)
        self._free = list(range(size - 1, before - 1, -1))


class Counted:
    """A request's number that is stored in the ledger; 0 while it has no place there."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, request: Request, owner: type) -> int:
        ledger, place = request.ledger, request.place  # read once: the step thread may clear them meanwhile
        return int(getattr(ledger, self.name)[place]) if ledger is not None else 0

    def __set__(self, request: Request, value: int) -> None:
        getattr(request.ledger, self.name)[request.place] = value


class Shown(Generic[T]):
    """A value stored in the request, of which the ledger has a copy as a number.

    It is read as fast as any attribute: where a descriptor has no `__get__`, Python looks in the object itself.
    """

    def __init__(self, number: Callable[[T], float] | None = None) -> None:
        """`number` converts a value that is none itself."""
        self.number = number

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    if TYPE_CHECKING:

        def __get__(self, request: Request, owner: type) -> T: ...

    def __set__(self, request: Request, value: T) -> None:
        vars(request)[self.name] = value
        if request.ledger is not None:
            self.show(request)

    def show(self, request: Request) -> None:
        value: Any = vars(request)[self.name]
        getattr(request.ledger, self.name)[request.place] = value if self.number is None else self.number(value)
