from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import anyio
import msgspec
import pytest

from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.messages import SequenceOutput, Submit
from tokenloom_router.errors import (
    GenerationError,
    OverloadedError,
    UnavailableError,
    ValidationError,
)
from tokenloom_router.metrics import Metrics
from tokenloom_router.request import GenerateRequest
from tokenloom_router.router import Router

from .conftest import RunRouter, order
from .test_metrics import samples


def plain(max_new_tokens: int = 5, **fields: Any) -> GenerateRequest:  # noqa: ANN401
    return GenerateRequest(inputs="one two three", max_new_tokens=max_new_tokens, **fields)


async def read(router: Router, request: GenerateRequest) -> list[SequenceOutput]:
    async with router.stream(request) as stream:
        return [output async for output in stream]


async def aborted_ids(router: Router) -> list[int]:
    """Return the ids that the double was told to abort so far."""
    outputs = await read(router, order("aborted", max_new_tokens=1))
    ids: list[int] = json.loads(outputs[0].tokens[0].text)
    return ids


async def test_a_stream_gives_each_output_and_ends(run_router: RunRouter) -> None:
    async with run_router() as router, router.stream(plain()) as stream:
        outputs = [output async for output in stream]
        assert [len(output.tokens) for output in outputs] == [1] * 5
        assert outputs[-1].finish is not None
        assert [output.finish for output in outputs[:-1]] == [None] * 4
        assert [output async for output in stream] == []
        ids = [output.tokens[0].id for output in outputs]
        assert ids == [*stream.request.prompt_ids, *stream.request.prompt_ids[:2]]
        times = stream.timings
        assert (
            times.received_at
            <= times.validated_at
            <= times.started_at
            <= times.first_token_at
            <= times.finished_at
        )


async def test_many_streams_keep_their_own_tokens(run_router: RunRouter) -> None:
    texts: dict[int, str] = {}

    async def run(router: Router, number: int) -> None:
        outputs = await read(router, plain(20 + number))
        text = "".join(token.text for output in outputs for token in output.tokens)
        assert outputs[-1].finish is not None
        assert outputs[-1].finish.generated_text == text
        assert len(outputs) == 20 + number
        texts[outputs[0].id] = text

    async with run_router() as router, anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(run, router, number)
    assert len(texts) == 50
    assert all(set(text.split()) == {str(id)} for id, text in texts.items())


async def test_a_slow_reader_holds_up_nobody(run_router: RunRouter) -> None:
    async with run_router() as router, router.stream(plain(100)) as slow:
        first = await anext(slow)
        assert len(await read(router, plain(150))) == 150
        rest = [output async for output in slow]
        assert len([first, *rest]) == 100


async def test_the_submit_says_what_was_asked(run_router: RunRouter) -> None:
    request = order("submit", max_new_tokens=1, temperature=0.5, seed=9, ignore_eos=True)
    async with run_router(disable_forced_tokens=True) as router:
        (output,) = await read(router, request)
    submit = msgspec.json.decode(output.tokens[0].text, type=Submit)
    assert submit.stopping == type(submit.stopping)(
        max_new_tokens=1, stop=("submit",), ignore_eos=True
    )
    assert (submit.sampling.temperature, submit.sampling.seed) == (0.5, 9)
    assert not submit.forced_tokens
    assert not submit.logprobs.tokens


async def test_generate_gives_the_whole(run_router: RunRouter, metrics: Metrics) -> None:
    async with run_router() as router:
        response = await router.generate(plain(4))
        (generation,) = response.generations
        assert len(generation.tokens) == generation.finish.generated_tokens == 4
        assert generation.seed is None
        assert response.request.input_length == 3
        assert response.timings.total_seconds > 0
    found = samples(metrics)
    assert found["tgi_request_count"] == found["tgi_request_success"] == 1
    assert found["tgi_request_generated_tokens_sum"] == 4
    assert found["tgi_request_input_length_sum"] == 3
    assert found["tgi_request_inter_token_duration_count"] == 3
    assert found['tgi_batch_inference_count{method="decode"}'] == 4


async def test_best_of_takes_the_most_probable(run_router: RunRouter, metrics: Metrics) -> None:
    async with run_router(max_concurrent_requests=3, max_best_of=4) as router:
        response = await router.generate(plain(best_of=3, do_sample=True))
        means = [generation.tokens[0].logprob or 0.0 for generation in response.generations]
        assert means == sorted(means, reverse=True)
        assert len(set(means)) == len({g.seed for g in response.generations}) == 3
        with pytest.raises(OverloadedError):
            await router.generate(plain(best_of=4, do_sample=True))
        assert len(await read(router, plain())) == 5
    assert samples(metrics)["tgi_request_count"] == 3


async def test_one_failed_sibling_fails_the_request(run_router: RunRouter) -> None:
    async with run_router(max_concurrent_requests=2) as router:
        with pytest.raises(GenerationError, match="the double was told to fail"):
            await router.generate(order("err", best_of=2, do_sample=True))
        assert len(await read(router, plain())) == 5


async def test_at_the_limit_the_answer_is_immediate(
    run_router: RunRouter, metrics: Metrics
) -> None:
    async with run_router(max_concurrent_requests=2) as router:
        async with router.stream(order("slow")), router.stream(order("hang")):
            # the permit is taken before validation: also an invalid request is one too many
            for request in (plain(), plain(temperature=-1.0)):
                with anyio.fail_after(0.1), pytest.raises(OverloadedError):
                    await read(router, request)
            with anyio.fail_after(0.1), pytest.raises(OverloadedError):
                await router.generate(plain())
        assert len(await read(router, plain())) == 5
    assert samples(metrics)['tgi_request_failure{err="overloaded"}'] == 3


async def test_a_refused_request_keeps_nothing(run_router: RunRouter, metrics: Metrics) -> None:
    async with run_router(max_concurrent_requests=1) as router:
        for _ in range(3):
            with pytest.raises(ValidationError, match="`top_k` must be strictly positive"):
                await read(router, plain(top_k=0))
        with pytest.raises(ValidationError, match="supported when streaming"):
            await read(router, plain(stream=True, best_of=2))
        assert len(await read(router, plain())) == 5
    found = samples(metrics)
    assert found['tgi_request_failure{err="validation"}'] == 4
    assert found["tgi_request_success"] == 1


async def test_leaving_aborts_and_returns_the_permit(
    run_router: RunRouter, metrics: Metrics
) -> None:
    async with run_router(max_concurrent_requests=1) as router:
        async with router.stream(order("slow")) as early:
            left = (await anext(early)).id
        with pytest.raises(KeyError):
            async with router.stream(order("hang")):
                raise KeyError
        with anyio.move_on_after(0.05) as scope:
            await router.generate(order("slow"))
        assert scope.cancelled_caught
        assert await aborted_ids(router) == [left, left + 1, left + 2]
    assert samples(metrics)['tgi_request_failure{err="dropped"}'] == 3


async def test_a_finished_sequence_is_not_aborted(run_router: RunRouter) -> None:
    async with run_router() as router:
        assert len(await read(router, plain())) == 5
        with pytest.raises(GenerationError):
            await read(router, order("err"))
        assert await aborted_ids(router) == []


async def test_a_stream_may_be_left_in_another_task(run_router: RunRouter) -> None:
    async with run_router(max_concurrent_requests=1) as router:
        stack = AsyncExitStack()

        async def enter() -> None:
            stream = await stack.enter_async_context(router.stream(order("slow")))
            await anext(stream)

        async def leave() -> None:
            await stack.aclose()

        for step in (enter, leave):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(step)
        assert len(await aborted_ids(router)) == 1


async def test_five_hundred_clients_that_leave(run_router: RunRouter, metrics: Metrics) -> None:
    async with run_router(max_concurrent_requests=1) as router:
        for number in range(500):
            with anyio.CancelScope() as scope:
                async with router.stream(order("slow")) as stream:
                    if number % 2:
                        await anext(stream)
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
        assert len(await aborted_ids(router)) == 500
    found = samples(metrics)
    assert found['tgi_request_failure{err="dropped"}'] == 500
    assert found["tgi_batch_current_max_tokens"] == 0


async def test_a_failed_sequence_fails_alone(run_router: RunRouter, metrics: Metrics) -> None:
    async with run_router() as router, router.stream(plain(30)) as neighbour:
        async with router.stream(order("err")) as stream:
            assert len((await anext(stream)).tokens) == 1
            with pytest.raises(GenerationError, match="generation: the double was told to fail"):
                [_ async for _ in stream]
            with pytest.raises(GenerationError):
                await anext(stream)
        assert len([output async for output in neighbour]) == 30
    found = samples(metrics)
    assert found['tgi_request_failure{err="generation"}'] == 1
    assert found["tgi_request_success"] == 1


async def test_an_engine_that_floods_fails_that_request_alone(run_router: RunRouter) -> None:
    async with run_router() as router:
        with pytest.raises(GenerationError, match="exceeded max_new_tokens"):
            await read(router, order("flood", max_new_tokens=60))
        assert len(await aborted_ids(router)) == 1


async def test_running_tokens_are_those_of_started_sequences(
    run_router: RunRouter, metrics: Metrics
) -> None:
    async with run_router() as router:
        runs = router.stream(order("slow", max_new_tokens=70))
        waits = router.stream(order("hang", max_new_tokens=90))
        async with runs as stream, waits:
            await anext(stream)
            assert samples(metrics)["tgi_batch_current_max_tokens"] == 74
        assert samples(metrics)["tgi_batch_current_max_tokens"] == 0


async def test_gauges_fall_when_the_last_client_leaves(
    run_router: RunRouter, metrics: Metrics
) -> None:
    async with run_router() as router:
        async with router.stream(order("slow")) as stream:
            await anext(stream)
            assert samples(metrics)["tgi_batch_current_size"] == 1
        assert samples(metrics)["tgi_batch_current_size"] == 0
        await anyio.sleep(0.02)  # for the outputs of a step that ran meanwhile
        assert samples(metrics)["tgi_batch_current_size"] == 0


async def test_draining_refuses_the_new_and_finishes_the_old(run_router: RunRouter) -> None:
    async with run_router() as router, router.stream(plain(20)) as stream:
        await anext(stream)
        router.drain()
        assert not router.is_ready
        with pytest.raises(UnavailableError, match="The server is shutting down"):
            await read(router, plain())
        assert len([output async for output in stream]) == 19


async def test_a_grammar_reaches_the_engine(run_router: RunRouter) -> None:
    spec = ConstraintSpec("regex", "[a-c]+")
    async with run_router(disable_grammar_support=False) as router:
        (output,) = await read(router, order("submit", max_new_tokens=1, constraint=spec))
        with pytest.raises(ValidationError, match="grammar is not valid: "):
            await read(router, plain(constraint=ConstraintSpec("regex", "(")))
    submit = msgspec.json.decode(output.tokens[0].text, type=Submit)
    assert submit.constraint == spec
    assert submit.forced_tokens


async def test_tokenize_needs_no_permit(run_router: RunRouter) -> None:
    async with run_router(max_concurrent_requests=1) as router, router.stream(order("hang")):
        spans = await router.tokenize("one two")
        assert [span.text for span in spans] == ["one", " two"]
        assert router.limits.max_total_tokens == 2048
        assert router.model.model_type == "double"
