"""Blocks: counted, shared by prefix, evicted least recently freed first."""

from __future__ import annotations

import random

from tokenloom_engine.block_manager import BlockManager, hash_block

SIZE = 4


def test_allocates_until_nothing_is_free() -> None:
    blocks = BlockManager(3, SIZE)
    first = blocks.allocate(2)
    assert first is not None and len(set(first)) == 2
    assert blocks.allocate(2) is None
    assert blocks.num_free == 1
    blocks.release(first)
    assert blocks.num_free == 3


def test_finds_the_longest_cached_prefix() -> None:
    blocks = BlockManager(8, SIZE)
    ids = list(range(12))
    table = _fill(blocks, ids)
    blocks.release(table)
    assert _match(blocks, ids) == table
    assert _match(blocks, ids[:11]) == table[:2], "of full blocks alone"
    assert _match(blocks, [*ids[:8], 99, 99, 99, 99]) == table[:2]
    assert _match(blocks, [99, *ids[1:]]) == []


def test_same_tokens_after_another_prefix_are_another_block() -> None:
    assert hash_block(hash_block(b"", [1]), [2]) != hash_block(hash_block(b"", [3]), [2])


def test_a_shared_block_is_free_when_its_last_holder_left() -> None:
    blocks = BlockManager(4, SIZE)
    ids = list(range(8))
    table = _fill(blocks, ids)
    shared = _match(blocks, ids)
    blocks.hold(shared)
    blocks.release(table)
    assert blocks.num_free == 2
    blocks.release(shared)
    assert blocks.num_free == 4


def test_evicts_the_least_recently_freed_and_the_tail_before_the_head() -> None:
    blocks = BlockManager(4, SIZE)
    old, new = list(range(8)), list(range(100, 108))
    old_table, new_table = _fill(blocks, old), _fill(blocks, new)
    blocks.release(old_table)
    blocks.release(new_table)
    taken = blocks.allocate(1)
    assert taken == [old_table[1]]
    assert _match(blocks, old) == old_table[:1]
    assert _match(blocks, new) == new_table


def test_blocks_without_contents_go_before_cached_ones() -> None:
    blocks = BlockManager(3, SIZE)
    ids = list(range(8))
    table = _fill(blocks, ids)
    other = blocks.allocate(1)
    assert other is not None
    blocks.release(table)
    blocks.release(other)
    assert blocks.allocate(1) == other
    assert _match(blocks, ids) == table


def test_without_prefix_caching_nothing_matches() -> None:
    blocks = BlockManager(4, SIZE, prefix_caching=False)
    ids = list(range(8))
    blocks.release(_fill(blocks, ids))
    assert _match(blocks, ids) == []


def test_counts_stay_right_under_random_use() -> None:
    rng = random.Random(0)
    blocks = BlockManager(32, SIZE)
    tables: list[list[int]] = []
    for _ in range(3000):
        if tables and rng.random() < 0.5:
            blocks.release(tables.pop(rng.randrange(len(tables))))
            continue
        ids = [rng.randrange(2) for _ in range(SIZE * rng.randrange(1, 5))]
        hashes: list[bytes] = []
        blocks.extend_hashes(hashes, ids, len(ids) // SIZE)
        shared = blocks.match_prefix(hashes)
        new = len(ids) // SIZE - len(shared)
        if new > blocks.num_free - blocks.num_free_among(shared):
            continue
        blocks.hold(shared)
        fresh = blocks.allocate(new)
        assert fresh is not None
        table = shared + fresh
        for block, block_hash in zip(fresh, hashes[len(shared) :], strict=True):
            blocks.cache(block, block_hash)
        tables.append(table)
        held = {block for table in tables for block in table}
        assert blocks.num_free == 32 - len(held)
    for table in tables:
        blocks.release(table)
    assert blocks.num_free == 32


def _fill(blocks: BlockManager, ids: list[int]) -> list[int]:
    """Allocate and cache blocks for all of ids."""
    table = blocks.allocate(len(ids) // SIZE)
    assert table is not None
    hashes: list[bytes] = []
    blocks.extend_hashes(hashes, ids, len(table))
    for block, block_hash in zip(table, hashes, strict=True):
        blocks.cache(block, block_hash)
    return table


def _match(blocks: BlockManager, ids: list[int]) -> list[int]:
    hashes: list[bytes] = []
    blocks.extend_hashes(hashes, ids, len(ids) // SIZE)
    return blocks.match_prefix(hashes)
