"""Blocks of the KV cache: who holds which, and which hold a prefix worth keeping."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence as Seq

BlockHash = bytes


def hash_block(parent: BlockHash, ids: Seq[int]) -> BlockHash:
    """Name a full block by its tokens and, through its parent's name, all tokens before it.

    A cryptographic hash: two different prefixes never share a block, not even on purpose.
    """
    return hashlib.blake2b(parent + array("q", ids).tobytes(), digest_size=16).digest()


class BlockManager:
    """Hands out the KV cache's blocks, with reference counts and a prefix cache.

    A block is free when no sequence holds it. A free block may still be cached: it keeps its
    contents and its hash until the block is handed out anew, least recently freed first.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._references = [0] * num_blocks
        self._hashes: list[BlockHash | None] = [None] * num_blocks
        self._cached: dict[BlockHash, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds, cached ones included."""
        return len(self._free)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def match_prefix(self, hashes: Seq[BlockHash]) -> list[int]:
        """The cached blocks of the longest beginning of `hashes`. Not held yet: call `hold`."""
        blocks: list[int] = []
        for block_hash in hashes:
            block = self._cached.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_free_among(self, blocks: Seq[int]) -> int:
        """How many of these blocks `hold` would take from the free ones."""
        return sum(block in self._free for block in blocks)

    def hold(self, blocks: Seq[int]) -> None:
        """Add one holder to each block."""
        for block in blocks:
            self._references[block] += 1
            self._free.pop(block, None)

    def allocate(self, count: int) -> list[int] | None:
        """Hand out `count` blocks with one holder each, or None if so many are not free."""
        if count > len(self._free):
            return None
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
            self._forget(block)
        return blocks

    def release(self, blocks: Seq[int]) -> None:
        """Take one holder from each block of a sequence's table.

        The table's last blocks are freed first, so a prefix outlives what follows it.
        """
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if self._hashes[block] is None:
                    self._free.move_to_end(block, last=False)

    def extend_hashes(
        self, hashes: list[BlockHash], ids: Seq[int], count: int, root: BlockHash = b""
    ) -> None:
        """Add, in place, what is missing to the hashes of the first `count` full blocks of `ids`.

        `hashes` holds those of the first blocks already, or nothing. `root`: the first block's
        parent; texts with different ones share no block.
        """
        for index in range(len(hashes), count):
            parent = hashes[-1] if hashes else root
            start = index * self.block_size
            hashes.append(hash_block(parent, ids[start : start + self.block_size]))

    def cache(self, block: int, block_hash: BlockHash) -> None:
        """Keep a full, computed block under its hash. The first block of a hash stays."""
        if self.prefix_caching and block_hash not in self._cached:
            self._cached[block_hash] = block
            self._hashes[block] = block_hash

    def _forget(self, block: int) -> None:
        block_hash = self._hashes[block]
        if block_hash is not None:
            del self._cached[block_hash]
            self._hashes[block] = None
