"""Paged KV bookkeeping: which block belongs to whom, and which hold a prefix that can be reused.

A request takes all the blocks that it can ever need when it is admitted, so a running stream never runs out of memory.
A full block of a prompt is identified by a digest of all keys up to its end. After its last user has gone it can still
be found until its memory is needed, least recently used first. Block 0 is scratch: padding writes there, nobody reads.

    free:  [ never used or unhashed … | hashed, least recently used … most recently used ]
              ← taken from here                                 returned here →
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b

from sonant.models.prompt import Ints


@dataclass
class Allocation:
    """A request's blocks in order. The first `reused_tokens` positions are already in the cache."""

    blocks: list[int]
    reused_tokens: int
    digests: list[bytes] = field(default_factory=list)  # of the prompt's full blocks


class BlockPool:
    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.total = blocks - 1
        self.users = [0] * blocks
        self.digest_of: dict[int, bytes] = {}
        self.block_of: dict[bytes, int] = {}
        self.free: OrderedDict[int, None] = OrderedDict((b, None) for b in range(1, blocks))

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def allocate(self, keys: Ints, reusable_tokens: int, total_tokens: int) -> Allocation | None:
        """Blocks for `total_tokens`, of which the full ones within `reusable_tokens` may be reused; None: no room."""
        digests = self._digests(keys, reusable_tokens // self.block_tokens)
        reused: list[int] = []
        for digest in digests:
            block = self.block_of.get(digest)
            if block is None:
                break
            reused.append(block)
        fresh_count = self.needed(total_tokens) - len(reused)
        if fresh_count > len(self.free) - sum(self.users[b] == 0 for b in reused):
            return None
        for block in reused:
            self.free.pop(block, None)
        fresh = [self._take() for _ in range(fresh_count)]
        for block in (*reused, *fresh):
            self.users[block] += 1
        return Allocation([*reused, *fresh], len(reused) * self.block_tokens, digests)

    def publish(self, allocation: Allocation, written_tokens: int) -> None:
        """Let others reuse the prompt blocks that the steps launched so far have filled."""
        for index in range(min(written_tokens // self.block_tokens, len(allocation.digests))):
            digest, block = allocation.digests[index], allocation.blocks[index]
            if digest not in self.block_of and block not in self.digest_of:
                self.block_of[digest] = block
                self.digest_of[block] = digest

    def release(self, allocation: Allocation) -> None:
        """Give the blocks back; call only when no launched step can still read them."""
        for block in reversed(allocation.blocks):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.free[block] = None
                if block not in self.digest_of:
                    self.free.move_to_end(block, last=False)

    def forget(self) -> None:
        """Forget all prefixes, since the blocks' contents are lost; none may be in use."""
        assert not any(self.users), "blocks are in use"
        self.digest_of.clear()
        self.block_of.clear()

    def _take(self) -> int:
        block, _ = self.free.popitem(last=False)
        digest = self.digest_of.pop(block, None)
        if digest is not None:
            del self.block_of[digest]
        return block

    def _digests(self, keys: Ints, count: int) -> list[bytes]:
        digests: list[bytes] = []
        last = b""
        for i in range(count):
            part = keys[i * self.block_tokens : (i + 1) * self.block_tokens]
            last = blake2b(last + part.tobytes(), digest_size=16).digest()
            digests.append(last)
        return digests
