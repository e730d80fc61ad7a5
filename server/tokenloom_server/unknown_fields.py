"""Unknown fields of the bodies of TGI's routes: ignored and reported, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import quote

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict

from tokenloom_server.http_metrics import HttpMetrics

HEADER = "x-ignored-fields"
MAX_NAMED_FIELDS = 10
MAX_NAME_LENGTH = 64
FieldPath = tuple[str | int, ...]


class OpenBody(BaseModel):
    """A body that may have unknown fields. They have no effect."""

    model_config = ConfigDict(strict=True, extra="allow")

    def unknown_fields(self) -> Iterator[FieldPath]:
        """The paths of the unknown fields, in this body and in the open bodies within it."""
        for name in self.model_extra or ():
            yield (name,)
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, OpenBody):
                yield from ((name, *path) for path in value.unknown_fields())
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    if isinstance(item, OpenBody):
                        yield from ((name, index, *path) for path in item.unknown_fields())


class UnknownFields:
    """The server's policy for unknown fields."""

    def __init__(self, metrics: HttpMetrics, *, are_refused: bool) -> None:
        self._ignored = metrics.ignored_fields
        self._are_refused = are_refused

    def headers(self, body: OpenBody) -> dict[str, str]:
        """Count a body's unknown fields, and return the header that names them.

        Raises:
            RequestValidationError: the body has unknown fields and they are refused.
        """
        paths = body.unknown_fields()
        named = list(islice(paths, MAX_NAMED_FIELDS))
        if not named:
            return {}
        if self._are_refused:
            fault: dict[str, Any] = {"type": "extra_forbidden", "loc": ("body", *named[0])}
            raise RequestValidationError([fault])
        num_others = sum(1 for _ in paths)
        self._ignored.inc(len(named) + num_others)
        names = ", ".join(map(_name, named))
        return {HEADER: f"{names}, and {num_others} more" if num_others else names}


def _name(path: FieldPath) -> str:
    """A path as header text: a client's names may hold any character."""
    return ".".join(quote(str(part)[:MAX_NAME_LENGTH], safe="", errors="replace") for part in path)
