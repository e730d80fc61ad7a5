from __future__ import annotations

import anyio
import msgspec
import pytest

from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.messages import Submit
from tokenloom_router.errors import (
    GenerationError,
    OverloadedError,
    UnavailableError,
    ValidationError,
)
from tokenloom_router.metrics import Metrics
from tokenloom_router.router import Router

from .conftest import RunRouter
from .running import order, plain, read, samples


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
