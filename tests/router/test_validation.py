from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import msgspec
import psutil
import pytest

from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.constraints.trials.levels import MAX_WAITING
from tokenloom_engine.messages import LogprobParams, ModelInfo
from tokenloom_router.config import RouterConfig
from tokenloom_router.errors import (
    EngineStartError,
    OverloadedError,
    RequestError,
    ValidationError,
)
from tokenloom_router.request import GenerateRequest
from tokenloom_router.validation import Validation

CONFIG = RouterConfig(max_input_tokens=8, max_total_tokens=20)
WORDS = "one two three four five six"  # six tokens


@pytest.fixture(scope="module")
async def validation(model: ModelInfo) -> AsyncIterator[Validation]:
    validation = await Validation.load(CONFIG, model)
    yield validation
    validation.close()


async def refusal(validation: Validation, request: GenerateRequest) -> str:
    with pytest.raises(ValidationError) as raised:
        await validation.validate(request)
    return str(raised.value).removeprefix("Input validation error: ")


async def test_max_new_tokens_is_exact_or_all_that_fits(validation: Validation) -> None:
    request = GenerateRequest(inputs=WORDS)
    assert (await validation.validate(request)).stopping.max_new_tokens == 14
    valid = await validation.validate(replace(request, max_new_tokens=14))
    assert (valid.input_length, valid.stopping.max_new_tokens) == (6, 14)
    assert await refusal(validation, replace(request, max_new_tokens=15)) == (
        "`inputs` tokens + `max_new_tokens` must be <= 20. "
        "Given: 6 `inputs` tokens and 15 `max_new_tokens`"
    )


async def test_min_new_tokens_must_fit(validation: Validation) -> None:
    request = GenerateRequest(inputs=WORDS, min_new_tokens=14)
    assert (await validation.validate(request)).stopping.min_new_tokens == 14
    reason = "`min_new_tokens` must be <= 14, for which there is room. Given: 15"
    assert await refusal(validation, replace(request, min_new_tokens=15)) == reason


async def test_inputs_that_are_too_long(validation: Validation) -> None:
    request = GenerateRequest(inputs=f"{WORDS} {WORDS}", max_new_tokens=8)
    assert await refusal(validation, request) == "`inputs` must have less than 8 tokens. Given: 12"
    request = GenerateRequest(inputs=f"{WORDS} {WORDS} {WORDS} {WORDS}")
    assert await refusal(validation, request) == (
        "`inputs` tokens + `max_new_tokens` must be <= 20. "
        "Given: 24 `inputs` tokens and 0 `max_new_tokens`"
    )


async def test_truncate_keeps_the_last_tokens(validation: Validation) -> None:
    whole = await validation.validate(GenerateRequest(inputs=WORDS))
    text = f"{WORDS} {WORDS}"
    for length in (1, 5):
        valid = await validation.validate(GenerateRequest(inputs=text, truncate=length))
        assert valid.prompt_ids == whole.prompt_ids[-length:]
        assert valid.inputs == text


async def test_a_seed_is_drawn_if_none_is_given(validation: Validation) -> None:
    sampled = GenerateRequest(inputs=WORDS, do_sample=True)
    seeds = {(await validation.validate(sampled)).seed for _ in range(4)}
    assert len(seeds) == 4
    assert None not in seeds
    valid = await validation.validate(replace(sampled, seed=3))
    assert (valid.seed, valid.sampling.seed, valid.sampling.greedy) == (3, 3, False)
    greedy = await validation.validate(GenerateRequest(inputs=WORDS, seed=3))
    assert (greedy.seed, greedy.sampling.greedy) == (None, True)


async def test_a_grammar_that_sets_temperatures_needs_a_seed(validation: Validation) -> None:
    rules = "start: a\na[temperature=0.5]: /[a-z]+/"
    request = GenerateRequest(inputs=WORDS, constraint=ConstraintSpec("grammar", rules))
    valid = [await validation.validate(request) for _ in range(2)]
    assert valid[0].seed != valid[1].seed
    for of_one in valid:
        assert of_one.seed == of_one.sampling.seed
        assert of_one.sampling.greedy, "elsewhere"
    assert (await validation.validate(replace(request, seed=3))).seed == 3
    assert (await validation.validate(replace(request, best_of=2))).best_of == 2


async def test_logprobs_are_computed_only_if_wanted(validation: Validation) -> None:
    request = GenerateRequest(inputs=WORDS, do_sample=True)
    assert (await validation.validate(request)).logprobs == LogprobParams()
    wanted = LogprobParams(tokens=True, top_n_tokens=2, prompt=True)
    assert (await validation.validate(replace(request, logprobs=wanted))).logprobs == wanted
    valid = await validation.validate(
        replace(request, best_of=2, logprobs=LogprobParams(top_n_tokens=1))
    )
    assert valid.logprobs == LogprobParams(tokens=True, top_n_tokens=1)


@pytest.mark.parametrize(
    "spec",
    [
        ConstraintSpec("json_schema", '{"type": "nonsense"}'),
        ConstraintSpec("json_schema", "{"),
        ConstraintSpec("regex", "("),
        ConstraintSpec("grammar", "start: missing"),
        ConstraintSpec("regex", "x" * 1_000_001),
    ],
)
async def test_a_broken_constraint_is_refused(validation: Validation, spec: ConstraintSpec) -> None:
    message = await refusal(validation, GenerateRequest(inputs=WORDS, constraint=spec))
    assert message.startswith("grammar is not valid: ")
    assert len(message) > len("grammar is not valid: ") + 5


async def test_a_sound_constraint_passes(validation: Validation) -> None:
    spec = ConstraintSpec("json_schema", '{"type": "object", "properties": {"a": {}}}')
    valid = await validation.validate(GenerateRequest(inputs=WORDS, constraint=spec))
    assert valid.constraint == spec
    half = ConstraintSpec("regex", "\ud83d")
    message = await refusal(validation, GenerateRequest(inputs=WORDS, constraint=half))
    assert message == "`grammar` is not valid Unicode text"


def _endless(number: int) -> GenerateRequest:
    """Its compilation would take longer than any limit here."""
    schema = json.dumps({"type": "integer", "multipleOf": 10_000_019 + 2 * number})
    return GenerateRequest(inputs=WORDS, constraint=ConstraintSpec("json_schema", schema))


async def test_a_constraint_that_compiles_for_ever_is_refused_in_time(model: ModelInfo) -> None:
    config = RouterConfig(constraints=ConstraintConfig(timeout_seconds=0.5))
    validation = await Validation.load(config, model)
    start = time.monotonic()
    message = await refusal(validation, _endless(0))
    assert message == "grammar is not valid: it takes too long to compile"
    assert time.monotonic() - start >= 0.5
    fine = GenerateRequest(inputs=WORDS, constraint=ConstraintSpec("regex", "[ab]+"))
    assert (await validation.validate(fine)).constraint == fine.constraint
    validation.close()


async def test_a_burst_of_slow_constraints_waits_and_is_an_overload_only_beyond_the_queue(
    model: ModelInfo,
) -> None:
    config = RouterConfig(constraints=ConstraintConfig(timeout_seconds=0.2))
    validation = await Validation.load(config, model)
    errors: list[type[Exception]] = []

    async def ask(number: int, client: str) -> None:
        try:
            await validation.validate(replace(_endless(number), client=client))
        except RequestError as error:
            errors.append(type(error))

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(ask, number, "one")
    assert errors == [ValidationError] * 5, "each had its time"
    errors.clear()
    async with anyio.create_task_group() as tasks:
        for number in range(MAX_WAITING + 40):
            tasks.start_soon(ask, number, "hostile")
        while OverloadedError not in errors:
            await anyio.sleep(0.01)
        fine = ConstraintSpec("regex", "[ab]{2}")
        request = GenerateRequest(inputs=WORDS, constraint=fine, client="other")
        assert (await validation.validate(request)).constraint == fine
        tasks.cancel_scope.cancel()
    validation.close()


async def test_constraints_outlive_the_trial_process(model: ModelInfo) -> None:
    """Also the one that is tried while it dies, and the next one."""
    config = RouterConfig(constraints=ConstraintConfig(timeout_seconds=0.5))
    validation = await Validation.load(config, model)
    ours = [process for process in psutil.Process().children() if _tries(process)]

    async def kill() -> None:
        await anyio.sleep(0.2)
        for process in ours:
            process.kill()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill)
        message = await refusal(validation, _endless(1))
    assert message == "grammar is not valid: it takes too long to compile"
    (process,) = (process for process in psutil.Process().children() if _is_new(process, ours))
    process.kill()
    fine = GenerateRequest(inputs=WORDS, constraint=ConstraintSpec("regex", "[ab]+"))
    assert (await validation.validate(fine)).constraint == fine.constraint
    validation.close()


async def test_a_trial_process_that_is_stopped_is_replaced(
    model: ModelInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom_engine.constraints.trials.connection.SILENT_SECONDS", 1.5)
    before = psutil.Process().children()
    validation = await Validation.load(RouterConfig(), model)
    (process,) = (child for child in psutil.Process().children() if _is_new(child, before))
    process.suspend()
    fine = ConstraintSpec("regex", "[ab]{1,9}")
    request = GenerateRequest(inputs=WORDS, constraint=fine)
    assert (await validation.validate(request)).constraint == fine
    assert not process.is_running()
    validation.close()


def _is_new(process: psutil.Process, known: list[psutil.Process]) -> bool:
    return process not in known and _tries(process)


def _tries(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):  # it has been killed, and nobody has waited for it yet
        return "tokenloom_engine.constraints.trials.process" in process.cmdline()
    return False


async def test_constraints_can_be_switched_off(model: ModelInfo) -> None:
    config = RouterConfig(disable_grammar_support=True, disable_forced_tokens=True)
    validation = await Validation.load(config, model)
    request = GenerateRequest(inputs=WORDS, constraint=ConstraintSpec("regex", "a"))
    assert await refusal(validation, request) == "grammar is not supported"
    assert not (await validation.validate(GenerateRequest(inputs=WORDS))).forced_tokens
    validation.close()


async def test_forced_tokens_are_off_where_the_request_says_so(model: ModelInfo) -> None:
    validation = await Validation.load(RouterConfig(), model)
    for wanted in (True, False):
        request = GenerateRequest(inputs=WORDS, forced_tokens=wanted)
        assert (await validation.validate(request)).forced_tokens is wanted
    validation.close()


async def test_many_at_once_keep_their_own(validation: Validation) -> None:
    numbers = range(200)
    found: dict[int, list[int]] = {}

    async def validate(number: int) -> None:
        found[number] = (await validation.validate(GenerateRequest(inputs=f"{number}"))).prompt_ids

    async with anyio.create_task_group() as tasks:
        for number in numbers:
            tasks.start_soon(validate, number)
    for number in numbers:
        valid = await validation.validate(GenerateRequest(inputs=f"{number}"))
        assert found[number] == valid.prompt_ids


async def test_a_client_that_leaves_does_not_wait_for_the_tokenizer(
    validation: Validation,
) -> None:
    long = GenerateRequest(inputs="many words " * 100_000)
    start = time.monotonic()
    with anyio.move_on_after(0.01) as scope:
        await validation.validate(long)
    left_after = time.monotonic() - start
    assert scope.cancelled_caught
    start = time.monotonic()
    assert "Given: 200001" in await refusal(validation, long)
    assert left_after < (time.monotonic() - start) / 2


async def test_tokenize(validation: Validation) -> None:
    spans = await validation.tokenize("one two", add_special_tokens=True)
    assert [(span.text, span.start, span.stop) for span in spans] == [("one", 0, 3), (" two", 3, 7)]
    with pytest.raises(ValidationError, match="not valid Unicode"):
        await validation.tokenize("\ud83d", add_special_tokens=True)


async def test_a_tokenizer_that_cannot_be_read(model: ModelInfo, tmp_path: Path) -> None:
    for content in (None, "{", "{}"):
        file = tmp_path / "tokenizer.json"
        if content is not None:
            file.write_text(content)
        broken = msgspec.structs.replace(model, tokenizer_file=str(file))
        with pytest.raises(EngineStartError, match="cannot read the tokenizer"):
            await Validation.load(RouterConfig(), broken)
