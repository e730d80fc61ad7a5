"""Regular expressions in xgrammar's grammar mean what they mean to Python."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tokenloom_engine.constraints.backends import load_backend
from tokenloom_engine.constraints.base import ConstraintBackend, TokenizerFacts
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.spec import ConstraintSpec

ATOMS = ("a", "b", "c", ".", "[ab]", "[^a]", r"\w", r"\W", r"\d", "[b-]", '[^"]', '"', r"\\", "é")
QUANTIFIERS = ("*", "+", "?", "*?", "{2}", "{0,2}", "{1,3}", "{2,}", "{0,1}")
CHARACTERS = 'abcé"\\\n 0-'


@pytest.fixture(scope="module")
def backend(tokenizer_file: Path) -> ConstraintBackend:
    facts = TokenizerFacts(
        json=tokenizer_file.read_text(), vocab_size=49152, eos_token_ids=(2,), num_threads=1
    )
    return load_backend("xgrammar", facts, ConstraintConfig())


@pytest.mark.parametrize("seed", range(4))
def test_any_expression(backend: ConstraintBackend, tokenizer_file: Path, seed: int) -> None:
    """As a whole text, and as the pattern of a JSON string that contains a match."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    draw = random.Random(seed)

    def allows(spec: ConstraintSpec, text: str) -> bool:
        constraint = backend.create(spec)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return constraint.accept_tokens(ids) and constraint.is_accepting

    for _ in range(60):
        body = _expression(draw, depth=3)
        regex = ConstraintSpec("regex", body)
        pattern = draw.choice(("", "^")) + f"({body})" + draw.choice(("", "$"))
        is_match = re.compile(pattern.replace("$", r"\Z"), re.ASCII).search
        for _ in range(8):
            text = "".join(draw.choices(CHARACTERS, k=draw.randrange(5)))
            expected = re.fullmatch(body, text, re.ASCII) is not None
            assert allows(regex, text) == expected, (body, text)
            quoted = f'"{text}"'
            value = _value(quoted)
            expected = value is not None and is_match(value) is not None
            spec = ConstraintSpec("json_schema", json.dumps({"type": "string", "pattern": pattern}))
            if "\\" in quoted:  # not all characters may be escaped in a string with a pattern
                assert expected or not allows(spec, quoted), (pattern, quoted)
            else:
                assert allows(spec, quoted) == expected, (pattern, quoted)


def _value(text: str) -> str | None:
    """What the text is as JSON, if it is a string."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, str) else None


def _expression(draw: random.Random, depth: int) -> str:
    inner = [] if depth == 0 else [_expression(draw, depth - 1) for _ in range(2)]
    match draw.randrange(5) if inner else 0:
        case 0:
            return draw.choice(ATOMS)
        case 1:
            return "".join(inner)
        case 2:
            return f"({'|'.join(inner)})"
        case 3:
            return f"({inner[0]}|)"
        case _:
            return f"({inner[0]}){draw.choice(QUANTIFIERS)}"
