"""The engine as a Python object: lists of prompts in, outputs in the same order."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from tests.engine.conftest import Encode
from tokenloom_engine import LLM
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.llm import Prompt
from tokenloom_engine.messages import LogprobParams, SamplingParams, StoppingParams

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[LLM]:
    with LLM(model=str(model_path), dtype="float32", max_batch_total_tokens=4096) as llm:
        yield llm
    del llm
    gc.collect()


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM, encode: Encode) -> None:
    """The first runs longest; one prompt is token ids."""
    lengths = [20, 3, 11, 1]
    prompts: list[Prompt] = ["Once upon a time", "The sea", encode("One, two,"), "Paris is"]
    outputs = llm.generate(
        prompts,
        stopping=[StoppingParams(max_new_tokens=n, ignore_eos=True) for n in lengths],
    )
    assert [len(output.tokens) for output in outputs] == lengths
    assert [output.prompt_ids[0] for output in outputs] == [
        encode(prompt)[0] if isinstance(prompt, str) else prompt[0] for prompt in prompts
    ]
    for output in outputs:
        assert output.finish is not None and output.finish.reason == "length"
        assert output.text == "".join(token.text for token in output.tokens)


def test_each_prompt_has_its_own_constraint_and_sampling(llm: LLM) -> None:
    outputs = llm.generate(
        ["A date: ", "A person as JSON: ", "Yes or no? ", "Anything: "],
        constraint=[
            ConstraintSpec("regex", "[0-3][0-9]-[01][0-9]"),
            {"kind": "json_schema", "value": SCHEMA},
            {"kind": "choice", "value": ["yes", "no"]},
            None,
        ],
        sampling=[SamplingParams(greedy=False, temperature=1.2, seed=seed) for seed in range(4)],
        stopping=StoppingParams(max_new_tokens=24),
    )
    date, person, answer, free = (output.text for output in outputs)
    assert re.fullmatch("[0-3][0-9]-[01][0-9]", date)
    jsonschema.validate(json.loads(person), SCHEMA)
    assert answer in ("yes", "no")
    assert free
    again = llm.generate(
        "Anything: ",
        sampling=SamplingParams(greedy=False, temperature=1.2, seed=3),
        stopping=StoppingParams(max_new_tokens=24),
    )
    assert again[0].text == free, "a seed's draws do not depend on the neighbours"


def test_a_fault_in_one_prompt_is_its_own(llm: LLM) -> None:
    bad, good = llm.generate(
        ["x", "A digit: "],
        constraint=[{"kind": "regex", "value": "("}, {"kind": "regex", "value": "[0-9]"}],
    )
    assert bad.error is not None and "grammar is not valid" in bad.error
    assert bad.finish is None and good.error is None and good.text.isdigit()


def test_log_probabilities_of_prompt_and_output(llm: LLM) -> None:
    (output,) = llm.generate(
        ["The capital of France is"],
        stopping=StoppingParams(max_new_tokens=2),
        logprobs=LogprobParams(tokens=True, prompt=True, top_n_tokens=2),
    )
    assert output.prompt is not None and len(output.prompt) == len(output.prompt_ids)
    for token in output.tokens:
        assert token.logprob is not None and token.top is not None
        assert token.logprob == pytest.approx(token.top[0].logprob), "greedy takes the best"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": ["a", ""]}, r"`prompts\[1\]` has no tokens"),
        ({"prompts": [[1, 10**9]]}, "1000000000, which is no token id"),
        ({"prompts": ["a"], "sampling": [SamplingParams()] * 2}, "2 items for 1 prompts"),
        ({"prompts": ["a"], "sampling": SamplingParams(temperature=0.0)}, "sampling.temperature"),
        (
            {"prompts": ["a"], "stopping": StoppingParams(max_new_tokens=10**6)},
            "the model has room for 4096",
        ),
        ({"prompts": ["a"], "constraint": {"kind": "regexp", "value": "a"}}, "`constraint`: "),
        ({"prompts": ["a"], "constraint": {"kind": "regex", "val": "a"}}, "no field `val`"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    llm: LLM, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate(**arguments)  # type: ignore[arg-type]


def test_the_package_alone_does_not_load_torch() -> None:
    code = "import tokenloom_engine, sys; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
