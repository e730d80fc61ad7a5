"""The outputs of one running sequence, for whoever waits for them."""

from __future__ import annotations

from tokenloom_engine.messages import Finish, SequenceOutput, Token
from tokenloom_router.entry import Entry
from tokenloom_router.errors import RequestError
from tokenloom_router.request import Generation, Timings, ValidRequest


class Stream:
    """Iterates over a sequence's outputs; ends after the one with `finish`.

    Raises GenerationError if the engine fails. For one reader.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self.finish: Finish | None = None
        """The sequence's end, once it was read."""
        self.error: RequestError | None = None
        """What the stream raised."""

    @property
    def request(self) -> ValidRequest:
        """The request as it was validated."""
        return self._entry.request

    @property
    def timings(self) -> Timings:
        """When the request passed each station, as far as it has come."""
        return self._entry.timings

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> SequenceOutput:
        if self.finish is not None:
            raise StopAsyncIteration
        if self.error is not None:
            raise self.error
        try:
            output = await self._entry.receive()
        except RequestError as error:
            self.error = error
            raise
        self.finish = output.finish
        return output

    async def collect(self) -> Generation:
        """Read to the end and return the whole."""
        tokens: list[Token] = []
        prompt: list[Token] = []
        async for output in self:
            tokens += output.tokens
            prompt += output.prompt or ()
        assert self.finish is not None, "a stream ends after its finish or raises"
        return Generation(tokens=tokens, prompt=prompt, finish=self.finish, seed=self.request.seed)
