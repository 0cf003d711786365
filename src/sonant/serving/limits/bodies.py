"""How much of unfinished requests is kept: all bodies together have a budget, for each front-end process its own.

A clip of some megabytes that never comes to its end would otherwise be kept for as long as its sender likes, a hundred
times over. What a body will need is taken from the budget before any of it is read; who finds it used up is told when
to come back, and nothing of theirs is read. Small bodies need none, so that texts are spoken while somebody stalls with
megabytes, and one client can take half at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive

from sonant.serving.refused import Refused

Admit = Callable[[], Awaitable[None]]

FREE_BYTES = 64 << 10  # a text of the greatest length; as much waits in the connection anyhow
_STEP_BYTES = 1 << 20  # of a body that does not say how long it is
_RETRY_S = 2.0


class BodyTooLarge(Refused):
    def __init__(self, limit: int) -> None:
        super().__init__(413, "body_too_large", f"the body is larger than the {limit:,} bytes that are allowed")


class BodyBudget:
    """Used on the event loop only."""

    def __init__(self, most_bytes: int, refused: Callable[[Refused], None]) -> None:
        """`refused` hears of everyone who is told to come again."""
        self.most_bytes, self.refused = most_bytes, refused
        self.held_bytes = 0
        self._by_client: Counter[str] = Counter()

    def take(self, client: str, size: int) -> None:
        share = self._by_client[client] + size
        # One body of any size is always let in where nobody has any: the option for a single one bounds that.
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
        if not self._by_client[client]:  # Clients come and go; only those that are here are kept.
            del self._by_client[client]


class BodyReader:
    """A request's `receive`, counted. `admit` raises what would refuse the request, before a large body is read."""

    def __init__(self, receive: Receive, budget: BodyBudget, client: str, max_bytes: int, admit: Admit) -> None:
        self.receive, self.budget, self.client, self.max_bytes, self.admit = receive, budget, client, max_bytes, admit
        self.seen_bytes = 0
        self.taken_bytes = 0  # of the budget
        self.released = False
        self.whole = False  # all of it has come
        self.gone = False  # the client left before that

    async def expect(self, size: int) -> None:
        """Raises `Refused` unless a body of that size may come now."""
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
        """The body has become something else, or nothing."""
        self.released = True
        if self.taken_bytes:
            self.budget.give_back(self.client, self.taken_bytes)
            self.taken_bytes = 0

    async def _take(self, size: int) -> None:
        if not self.taken_bytes:
            await self.admit()
        self.budget.take(self.client, size)
        self.taken_bytes += size
