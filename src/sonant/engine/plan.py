"""What one step is to do, as the scheduler decided and the runner launches it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sonant.engine.request import Request


@dataclass
class Plan:
    prefill: list[tuple[Request, int, int]] = field(default_factory=list)  # positions [start, end)
    preroll: list[Request] = field(default_factory=list)
    decode: dict[int, list[Request]] = field(default_factory=dict)  # by variant of the frame step
    codec: dict[int, list[Request]] = field(default_factory=dict)  # by how many frames each is given

    def __bool__(self) -> bool:
        return bool(self.prefill or self.preroll or self.decode or self.codec)

    @property
    def decoding(self) -> list[Request]:
        """All rows that decode, in the order of their records."""
        return [request for group in self.decode.values() for request in group]

    def requests(self) -> list[Request]:
        """Everyone whose row this step reads or writes, once each."""
        seen = [r for r, _, _ in self.prefill] + self.preroll + self.decoding
        seen += [r for group in self.codec.values() for r in group]
        return list(dict.fromkeys(seen))
