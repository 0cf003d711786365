"""Bounds the memory of unfinished requests: in each front-end process all bodies together have a budget.

A clip of some megabytes that never comes to its end would otherwise be kept for as long as its sender likes, a hundred
times over. What a body will need is taken from the budget before any of it is read; if the budget is used up, the
client is told when to come back, and its body is not read. Small bodies need no budget, so that texts are spoken while
somebody stalls with megabytes, and one client can take at most half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive

from sonant.serving.refused import Refused

Admit = Callable[[], Awaitable[None]]

FREE_BYTES = 64 << 10  # enough for the longest text; as much waits in the connection anyway
_STEP_BYTES = 1 << 20  # taken at a time for a body that does not say how long it is
_RETRY_S = 2.0


class BodyTooLarge(Refused):
    def __init__(self, limit: int) -> None:
        super().__init__(413, "body_too_large", f"the body is larger than the {limit:,} bytes that are allowed")


class BodyBudget:
    """Used on the event loop only."""

    def __init__(self, most_bytes: int, refused: Callable[[Refused], None]) -> None:
        """`refused` is called with each refusal."""
        self.most_bytes, self.refused = most_bytes, refused
        self.held_bytes = 0
        self._by_client: Counter[str] = Counter()

    def take(self, client: str, size: int) -> None:
        share = self._by_client[client] + size
        # A single body is always let in, whatever its size, which another option bounds.
        if self.held_bytes and (self.held_bytes + size > self.most_bytes or share > max(size, self.most_bytes // 2)):
            self._forget(client)
            message = "too many large bodies are on their way to this server; try again soon"
            refusal = Refused(503, "bodies_full", message, retry_s=_RETRY_S)
            self.refused(refusal)
            raise refusal
        self.held_bytes += size
        self._by_client[client] = share

    def give_back(self, client: str, size: int) -> None:
        self.held_bytes -= size
        self._by_client[client] -= size
        self._forget(client)

    def _forget(self, client: str) -> None:
        if not self._by_client[client]:  # only clients that hold some of it are kept
            del self._by_client[client]


class BodyReader:
    """A request's `receive` that counts bytes. Before a large body is read `admit` may raise the request's refusal."""

    def __init__(self, receive: Receive, budget: BodyBudget, client: str, max_bytes: int, admit: Admit) -> None:
        self.receive, self.budget, self.client, self.max_bytes, self.admit = receive, budget, client, max_bytes, admit
        self.seen_bytes = 0
        self.taken_bytes = 0  # of the budget
        self.released = False
        self.whole = False  # the end has come
        self.gone = False  # the client left before that

    async def expect(self, size: int) -> None:
        """Raises `Refused` unless a body of this size may come now."""
        if size > self.max_bytes:
            raise BodyTooLarge(self.max_bytes)
        if size > FREE_BYTES:
            await self._take(size)

    async def __call__(self) -> Message:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            self.gone = not self.whole
        if message["type"] == "http.request":
            self.whole = not message.get("more_body", False)
            self.seen_bytes += len(message.get("body", b""))
            if self.seen_bytes > self.max_bytes:
                raise BodyTooLarge(self.max_bytes)
            if self.seen_bytes > max(FREE_BYTES, self.taken_bytes) and not self.released:
                await self._take(_STEP_BYTES)
        return message

    def release(self) -> None:
        """Give the budget back, once the body itself is not kept any more."""
        self.released = True
        if self.taken_bytes:
            self.budget.give_back(self.client, self.taken_bytes)
            self.taken_bytes = 0

    async def _take(self, size: int) -> None:
        if not self.taken_bytes:
            await self.admit()
        self.budget.take(self.client, size)
        self.taken_bytes += size
