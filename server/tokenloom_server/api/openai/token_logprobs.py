"""Log-probabilities of tokens, in the two forms that OpenAI has."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import NotRequired

from typing_extensions import TypedDict

from tokenloom_engine.messages import Token, TopToken
from tokenloom_router.tokenizer import Tokenizer

LEAST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class TopLogprobBody(TypedDict):
    """One of the most probable tokens at a position. `masked` stands only where the grammar did not
    allow it.
    """

    token: str
    logprob: float
    bytes: list[int]
    masked: NotRequired[bool]


class TokenLogprobBody(TypedDict):
    """A token of a chat's answer. `forced` stands only where the grammar left no other choice."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprobBody]
    forced: NotRequired[bool]


class CompletionLogprobsBody(TypedDict):
    """The tokens of a completion, as parallel lists. `forced` says of each whether the grammar left
    no other choice; it is absent if there was no grammar.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    forced: NotRequired[list[bool]]


class TokenSpelling:
    """How tokens are written: part of a character as `bytes:\\xf0\\x9f`, as OpenAI does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def bytes(self, token: Token | TopToken) -> bytes:
        """A token's own bytes."""
        return self._tokenizer.token_bytes(token.id) or token.text.encode()

    def text(self, token: Token | TopToken) -> str:
        """A token as text."""
        data = self.bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def chat_logprob(self, token: Token) -> TokenLogprobBody:
        """A token in a chat's form."""
        body: TokenLogprobBody = {
            "token": self.text(token),
            "logprob": bounded(token.logprob),
            "bytes": list(self.bytes(token)),
            "top_logprobs": [self._top_logprob(top) for top in token.top or ()],
        }
        if token.forced:
            body["forced"] = True
        return body

    def top_logprobs(self, token: Token) -> dict[str, float] | None:
        """The most probable tokens in a completion's form, the chosen one among them."""
        if token.logprob is None:
            return None
        tops = {self.text(top): bounded(top.logprob) for top in token.top or ()}
        return tops | {self.text(token): bounded(token.logprob)}

    def _top_logprob(self, top: TopToken) -> TopLogprobBody:
        body: TopLogprobBody = {
            "token": self.text(top),
            "logprob": bounded(top.logprob),
            "bytes": list(self.bytes(top)),
        }
        if top.masked:
            body["masked"] = True
        return body


class CompletionOffsets:
    """Counts where the tokens of a text begin, as the text grows."""

    def __init__(self, spelling: TokenSpelling, *, has_constraint: bool) -> None:
        self._spelling = spelling
        self._has_constraint = has_constraint
        self._offset = 0

    def prompt(self, tokens: Sequence[Token], text: str) -> CompletionLogprobsBody:
        """The tokens of the prompt, whose text is at the beginning."""
        body = self._body(tokens)
        rest = memoryview(text.encode())
        characters = getincrementaldecoder("utf-8")()  # several tokens may share one
        for token in tokens:
            body["text_offset"].append(self._offset)
            spelt = self._spelling.bytes(token)
            for known in (spelt, spelt.removeprefix(b" ")):  # a first word may lose its space
                if known and rest[: len(known)] == known:
                    self._offset += len(characters.decode(known))
                    rest = rest[len(known) :]
                    break
        self._offset = len(text)
        return body

    def output(self, tokens: Sequence[Token], *, skips_special: bool) -> CompletionLogprobsBody:
        """Generated tokens, the next in the text."""
        body = self._body(tokens)
        for token in tokens:
            body["text_offset"].append(self._offset)
            if not (token.special and skips_special):
                self._offset += len(token.text)
        return body

    def _body(self, tokens: Sequence[Token]) -> CompletionLogprobsBody:
        body: CompletionLogprobsBody = {
            "tokens": [self._spelling.text(token) for token in tokens],
            "token_logprobs": [
                None if token.logprob is None else bounded(token.logprob) for token in tokens
            ],
            "top_logprobs": [self._spelling.top_logprobs(token) for token in tokens],
            "text_offset": [],
        }
        if self._has_constraint:
            body["forced"] = [token.forced for token in tokens]
        return body


def bounded(logprob: float | None) -> float:
    """A number that JSON has."""
    return LEAST if logprob is None else max(LEAST, logprob)
