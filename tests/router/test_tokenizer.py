from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from transformers import AutoTokenizer

from tokenloom_router.tokenizer import Tokenizer, TokenSpan

TEXTS = [
    "Hello, wörld!",
    "  two spaces\n\nand\tlines ",
    "你好 🙂👍🏽 क्षि",
    "<|im_start|>user\nhi<|im_end|>\n",
    "x" * 5000,
]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file: Path) -> Tokenizer:
    return Tokenizer(str(tokenizer_file))


def test_ids_are_those_of_transformers(tokenizer: Tokenizer, model_path: Path) -> None:
    reference = AutoTokenizer.from_pretrained(model_path)
    for text in TEXTS:
        assert tokenizer.encode(text) == reference(text).input_ids
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(
            text, add_special_tokens=False
        )


def test_threads_may_share_it(tokenizer: Tokenizer) -> None:
    alone = [tokenizer.encode(text) for text in TEXTS]
    with ThreadPoolExecutor(8) as threads:
        crowd = list(threads.map(tokenizer.encode, TEXTS * 20))
    assert crowd == alone * 20


def test_spans_are_in_bytes(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        spans = tokenizer.spans(text)
        assert [span.id for span in spans] == tokenizer.encode(text)
        assert all(text.encode()[span.start : span.stop].decode() == span.text for span in spans)
        assert (spans[0].start, spans[-1].stop) == (0, len(text.encode()))
    last = tokenizer.spans("wörld!")[-1]
    assert last == TokenSpan(last.id, "!", 6, 7)


def test_a_file_that_truncates_and_pads_does_neither_here(
    tokenizer: Tokenizer, tokenizer_file: Path, tmp_path: Path
) -> None:
    backend = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    plain = Tokenizer(str(tmp_path / "tokenizer.json"))
    assert plain.encode("one two three") == tokenizer.encode("one two three")
    assert len(plain.spans("one two three")) == 3
    assert plain.json == tokenizer.json


def test_the_router_imports_neither_torch_nor_transformers() -> None:
    program = (
        "import sys; import tokenloom_router.router;"
        "assert 'tokenizers' in sys.modules; assert not {'torch', 'transformers'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
