"""The text of one sequence as it grows: decoded, without a healed prefix, up to a stop string."""

from __future__ import annotations

import msgspec

from tokenloom_engine.constraints.spec import JSON_KINDS
from tokenloom_engine.detokenizer import Detokenizer
from tokenloom_engine.messages import Submit
from tokenloom_engine.stop_strings import StopStrings
from tokenloom_engine.vocabulary import Vocabulary


class GeneratedText:
    """Takes tokens, and gives out the piece that each adds. Special tokens are no part of it."""

    def __init__(self, submit: Submit, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer(vocabulary, submit.prompt_ids)
        spec = submit.constraint
        self._num_repeated = len(spec.prefix) if spec is not None else 0
        """Characters to come that the prompt had already, before token healing backed it up."""
        scope = submit.stopping.stop_scope
        if spec is not None and spec.kind in JSON_KINDS:
            scope = msgspec.structs.replace(scope, in_json=True)
        self._stop = StopStrings(submit.stopping.stop, scope)
        self._pieces: list[str] = []
        self.is_stopped = False
        """Whether a stop string ended it."""

    @property
    def whole(self) -> str:
        """All pieces, joined."""
        return "".join(self._pieces)

    def push(self, id: int, *, may_stop: bool) -> str:
        """Add a token; returns its piece (a special token's is its name)."""
        piece = self._detokenizer.push(id)
        is_special = self._vocabulary.is_special(id)
        if not is_special:
            piece = self._without_prefix(piece)
        stays = self._stop.cut(piece, may_stop=may_stop)
        if stays is not None:
            self.is_stopped = True
            piece = piece[:stays]
        if not is_special:
            self._pieces.append(piece)
        return piece

    def flush(self) -> str:
        """What was held back with the beginning of a character that never came to its end."""
        tail = "" if self.is_stopped else self._without_prefix(self._detokenizer.flush())
        self._pieces.append(tail)
        return tail

    def _without_prefix(self, text: str) -> str:
        """What of a new piece of text the prompt did not have already."""
        new = text[self._num_repeated :]
        self._num_repeated -= len(text) - len(new)
        return new
