"""The router: takes a request through permit, validation and engine, and back."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace

import anyio
import msgspec

from tokenloom_engine.config import EngineConfig
from tokenloom_engine.messages import Finish, ModelInfo
from tokenloom_router.chat_template import ChatPrompt, ChatTemplate
from tokenloom_router.config import RouterConfig
from tokenloom_router.errors import PromptError, RequestError, UnavailableError, ValidationError
from tokenloom_router.limits import Limits
from tokenloom_router.metrics import Metrics
from tokenloom_router.parameters import MAX_SEED
from tokenloom_router.permits import PermitLease, Permits
from tokenloom_router.replicas import Replicas
from tokenloom_router.request import (
    GenerateRequest,
    GenerateResponse,
    Generation,
    Timings,
    ValidRequest,
)
from tokenloom_router.sampling_defaults import SamplingDefaults
from tokenloom_router.stream import Stream
from tokenloom_router.supervisor import ENGINE_COMMAND
from tokenloom_router.tokenizer import Tokenizer, TokenSpan
from tokenloom_router.validation import Validation


class Router:
    """Serves requests between `running()` and its end. Knows no HTTP."""

    def __init__(
        self,
        config: RouterConfig,
        engine: EngineConfig,
        metrics: Metrics,
        *,
        engine_command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._permits = Permits(config.max_concurrent_requests)
        self._replicas = Replicas(
            engine, metrics.engine, config.engine_stall_timeout, engine_command
        )
        self._model: ModelInfo | None = None
        self._validation: Validation | None = None
        self._is_draining = False
        self._num_open_requests = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the engines, wait until they are ready, keep them running; stop them at the end.

        Raise EngineStartError if one cannot start.
        """
        problem: Exception | None = None
        async with anyio.create_task_group() as tasks:
            try:
                self._model = await self._replicas.start(tasks)
                self._validation = await Validation.load(self._config, self.model)
                self._metrics.requests.limited(self.limits)
                yield
            except Exception as error:  # raised below: a task group would wrap it
                problem = error
            finally:
                if self._validation is not None:
                    self._validation.close()
                tasks.cancel_scope.cancel()
        if problem is not None:
            raise problem

    @property
    def model(self) -> ModelInfo:
        """The loaded model. Only after `running()` was entered."""
        if self._model is None:
            raise UnavailableError("The model is not loaded yet")
        return self._model

    @property
    def limits(self) -> Limits:
        """What a request may ask for. Only after `running()` was entered."""
        return self._loaded_validation.limits

    @property
    def is_ready(self) -> bool:
        """Return whether a request is taken: an engine is ready and the server is not draining."""
        return self._validation is not None and self.num_ready > 0 and not self._is_draining

    @property
    def num_replicas(self) -> int:
        """Number of engines, ready or not."""
        return self._replicas.count

    @property
    def num_ready(self) -> int:
        """Number of engines that take requests."""
        return self._replicas.num_ready

    @property
    def num_open_requests(self) -> int:
        """Requests that are validated, run, or whose outputs are still being read."""
        return self._num_open_requests

    @property
    def num_engine_messages(self) -> int:
        """Messages from the engines so far: more and more while one of them makes progress."""
        return self._replicas.num_received

    @property
    def engine_pids(self) -> list[int | None]:
        """Process id of each engine, None while there is none."""
        return self._replicas.pids

    def drain(self) -> None:
        """Take no more requests; those in flight go on."""
        self._is_draining = True

    @asynccontextmanager
    async def stream(self, request: GenerateRequest) -> AsyncIterator[Stream]:
        """Run a request of one sequence. Raise RequestError if it cannot be run.

        Holds a permit until the sequence ends, whether or not its outputs have been read. Leaving
        it aborts a sequence that has not ended, also when it is left in another task than the one
        that entered it.
        """
        timings = Timings(received_at=time.monotonic())
        with self._metrics.requests.track(timings) as record, self._admit() as permit:
            valid = record.request = await self._validate(request, timings)
            client, prefill_tokens = self._replicas.choose(valid.prompt_ids)
            with client.open(valid, timings, permit.release, prefill_tokens) as entry:
                stream = Stream(entry)
                try:
                    yield stream
                finally:
                    record.finishes, record.error = _finishes([stream]), stream.error

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        """Run a request to its end. With best_of > 1: that many sequences, one permit each."""
        timings = Timings(received_at=time.monotonic())
        with self._metrics.requests.track(timings) as record:
            best_of = self._loaded_validation.best_of(request)
            with self._admit(best_of) as permits, ExitStack() as stack:
                valid = record.request = await self._validate(request, timings)
                streams = self._open_siblings(stack, valid, timings, permits)
                # All run at once. Each has its own buffer, so they can be read one by one.
                generations = [await stream.collect() for stream in streams]
            if best_of > 1:
                generations.sort(key=_mean_logprob, reverse=True)
            record.finishes = [generation.finish for generation in generations]
        return GenerateResponse(generations=generations, request=valid, timings=timings)

    @asynccontextmanager
    async def streams(self, requests: Sequence[GenerateRequest]) -> AsyncIterator[list[Stream]]:
        """Run all sequences of several requests at once: the `n` of the first, of the second, ...

        All of them or none: raise RequestError if one cannot be run, PromptError if it is to blame
        and not the only one. Holds a permit for each until it ends, as `stream` does.
        """
        with ExitStack() as stack:
            timings = [Timings(received_at=time.monotonic()) for _ in requests]
            records = [stack.enter_context(self._metrics.requests.track(t)) for t in timings]
            permits = stack.enter_context(self._admit(sum(request.n for request in requests)))
            valid = [
                await self._validate_one_of(requests, index, timings[index])
                for index in range(len(requests))
            ]
            for record, request in zip(records, valid, strict=True):
                record.request = request
            groups = [
                self._open_siblings(stack, request, timing, permits)
                for request, timing in zip(valid, timings, strict=True)
            ]
            try:
                yield [stream for group in groups for stream in group]
            finally:
                for record, group in zip(records, groups, strict=True):
                    record.finishes, record.error = _finishes(group), _first_error(group)

    async def tokenize_chat(self, chat: ChatPrompt) -> tuple[str, list[TokenSpan]]:
        """Return the text of a chat's prompt, and its tokens with their places in it."""
        return await self._loaded_validation.tokenize_chat(chat)

    @property
    def tokenizer(self) -> Tokenizer:
        """The loaded model's. Only after `running()` was entered."""
        return self._loaded_validation.tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        """The loaded model's. Only after `running()` was entered."""
        return self._loaded_validation.chat_template

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """What the loaded model says of sampling. Only after `running()` was entered."""
        return self._loaded_validation.sampling_defaults

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[TokenSpan]:
        """Return the tokens of `text`, with their places in its UTF-8 form."""
        return await self._loaded_validation.tokenize(text, add_special_tokens=add_special_tokens)

    async def _validate_one_of(
        self, requests: Sequence[GenerateRequest], index: int, timings: Timings
    ) -> ValidRequest:
        try:
            return await self._validate(requests[index], timings)
        except ValidationError as error:
            if len(requests) == 1:
                raise
            raise PromptError(index, error) from None

    def _open_siblings(
        self, stack: ExitStack, request: ValidRequest, timings: Timings, permits: PermitLease
    ) -> list[Stream]:
        """Submit all sequences of a request to one engine. Each returns its permit when it ends."""
        client, prefill_tokens = self._replicas.choose(request.prompt_ids)
        streams = []
        for sibling in _siblings(request):
            entry = client.open(sibling, timings, permits.release, prefill_tokens)
            streams.append(Stream(stack.enter_context(entry)))
            prefill_tokens = 0  # the engine computes their common prompt once
        return streams

    @contextmanager
    def _admit(self, count: int = 1) -> Iterator[PermitLease]:
        """Hold permits, which a server that is told to stop does not give away any more."""
        if self._is_draining:
            raise UnavailableError("The server is shutting down")
        with self._permits.acquire(count) as permits:
            self._num_open_requests += 1
            try:
                yield permits
            finally:
                self._num_open_requests -= 1

    async def _validate(self, request: GenerateRequest, timings: Timings) -> ValidRequest:
        if not self.is_ready:
            raise UnavailableError("The engine is not ready")
        valid = await self._loaded_validation.validate(request)
        timings.validated_at = time.monotonic()
        self._metrics.requests.validated(valid)
        return valid

    @property
    def _loaded_validation(self) -> Validation:
        if self._validation is None:
            raise UnavailableError("The model is not loaded yet")
        return self._validation


def _siblings(request: ValidRequest) -> list[ValidRequest]:
    """Return one request a sequence, each with its own seed."""
    num = max(request.best_of, request.n)
    if num == 1:
        return [request]
    if request.seed is None:  # nothing is drawn
        return [request] * num
    if request.best_of > 1:
        seeds = [secrets.randbelow(MAX_SEED + 1) for _ in range(num)]
    else:
        seeds = [(request.seed + i) % (MAX_SEED + 1) for i in range(num)]
    return [
        replace(request, sampling=msgspec.structs.replace(request.sampling, seed=seed), seed=seed)
        for seed in seeds
    ]


def _finishes(streams: Sequence[Stream]) -> list[Finish]:
    """The ends of all sequences, or nothing if one has not ended."""
    finishes = [stream.finish for stream in streams if stream.finish is not None]
    return finishes if len(finishes) == len(streams) else []


def _first_error(streams: Sequence[Stream]) -> RequestError | None:
    return next((stream.error for stream in streams if stream.error is not None), None)


def _mean_logprob(generation: Generation) -> float:
    logprobs = [token.logprob for token in generation.tokens if token.logprob is not None]
    return sum(logprobs) / len(logprobs) if logprobs else float("-inf")
