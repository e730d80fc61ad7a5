"""Prefixes of prompts, as hashes that requests with a common prefix share."""

from __future__ import annotations

from hashlib import blake2b

import msgspec
from msgspec import Raw

BLOCK_BYTES = 256
MAX_BLOCKS = 128
HASH_BYTES = 8
NOTHING = Raw(b"")


class PromptFields(msgspec.Struct):
    """The fields that a prompt is made of in any dialect, in a prompt's order and not decoded."""

    tools: Raw = NOTHING
    instructions: Raw = NOTHING
    inputs: Raw = NOTHING
    prompt: Raw = NOTHING
    messages: Raw = NOTHING
    input: Raw = NOTHING
    instances: Raw = NOTHING


_decoder = msgspec.json.Decoder(PromptFields)


def prefix_hashes(body: bytes) -> tuple[bytes, ...]:
    """Return a hash for each block of a prompt: of the prompt's text up to the end of the block.

    Empty if the prompt is shorter than a block, or `body` is no JSON object.
    """
    try:
        fields = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return ()
    text = b"".join(bytes(field) for field in msgspec.structs.astuple(fields))
    num_blocks = min(len(text) // BLOCK_BYTES, MAX_BLOCKS)
    hasher = blake2b(digest_size=HASH_BYTES)
    hashes = []
    for block in range(num_blocks):
        hasher.update(text[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES])
        hashes.append(hasher.digest())
    return tuple(hashes)
