"""The rows of a step as rank 0 tells them to the others: plain numbers, without their requests."""

from __future__ import annotations

import numpy as np

from tokenloom_engine.batch import Row
from tokenloom_engine.messages import SamplingParams, StoppingParams, Submit
from tokenloom_engine.sequence import Sequence
from tokenloom_engine.vocabulary import Vocabulary

FIELDS = 6
"""Numbers that each row has first: start, count, first_logit, blocks, whether it prefills, whether
its text is a long one."""
NOBODY = Submit(
    id=0, prompt_ids=[], sampling=SamplingParams(), stopping=StoppingParams(max_new_tokens=1)
)


def encode_rows(rows: list[Row], block_size: int) -> bytes:
    """int32: the number of rows, `FIELDS` of each, all their tables, all their tokens."""
    numbers = [len(rows)]
    tables: list[int] = []
    ids: list[int] = []
    for row in rows:
        num_blocks = -(-row.end // block_size)
        numbers += row.start, row.count, row.first_logit, num_blocks
        numbers += row.is_prefill, row.sequence.is_long
        tables += row.sequence.block_table[:num_blocks]
        ids += row.sequence.ids[row.start : row.known_end]
        ids += row.drafts
    return np.asarray(numbers + tables + ids, dtype=np.int32).tobytes()


def decode_rows(data: bytes, vocabulary: Vocabulary) -> list[Row]:
    """Rows from which `Batch.pack` makes the same tensors. What came before them is not there."""
    numbers: list[int] = np.frombuffer(data, dtype=np.int32).tolist()
    fields = [numbers[i : i + FIELDS] for i in range(1, 1 + FIELDS * numbers[0], FIELDS)]
    table = 1 + FIELDS * len(fields)
    token = table + sum(num_blocks for _, _, _, num_blocks, _, _ in fields)
    rows = []
    for start, count, first_logit, num_blocks, is_prefill, is_long in fields:
        sequence = Sequence(NOBODY, vocabulary)
        sequence.ids = [0] * start + numbers[token : token + count]
        sequence.num_scored = first_logit + 1
        sequence.is_long = bool(is_long)
        sequence.block_table = numbers[table : table + num_blocks]
        rows.append(Row(sequence, start, count, bool(is_prefill)))
        table += num_blocks
        token += count
    return rows
