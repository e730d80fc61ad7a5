"""What a route takes: a model that bodies are validated as."""

from __future__ import annotations

from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from tokenloom_server.strict_json import parse_object

Place = tuple[str | int, ...]


class InvalidBody(HTTPException):
    """A body of the wrong shape: an error that FastAPI lets through where it reads bodies."""

    def __init__(self, error: RequestValidationError) -> None:
        super().__init__(422)
        self.error = error


class BodyModel:
    """The model of one route's bodies."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - whatever a route declares
        self._adapter = TypeAdapter[Any](model)

    def parse(self, body: bytes) -> object:
        """The model's instance. Raises BodyError if it is not JSON, InvalidBody for its shape."""
        given = parse_object(body)
        try:
            return self._adapter.validate_python(given)
        except ValidationError as error:
            # Only one is told, and there may be one for each number of a long list.
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            told = {**first, "loc": ("body", *place(given, first["loc"], first["type"]))}
            raise InvalidBody(RequestValidationError([told])) from None


def place(given: object, loc: Place, kind: str) -> Place:
    """Where in a body a fault of this kind is, of what pydantic says: that has the names of unions'
    members, too, among the names of fields.
    """
    found = _place(given, loc, kind)
    return () if found is None else found


def _place(given: object, loc: Place, kind: str) -> Place | None:
    """None if the last part would have to be the name of a field, and cannot."""
    if not loc:
        return ()
    part, rest = loc[0], loc[1:]
    if not rest and kind == "missing":
        return loc if isinstance(given, dict) and part not in given else None
    if _has(given, part) and (behind := _place(given[part], rest, kind)) is not None:  # type: ignore[index]
        return part, *behind
    if not rest and kind == "extra_forbidden":
        return None
    return _place(given, rest, kind)


def _has(given: object, part: str | int) -> bool:
    if isinstance(given, list):
        return isinstance(part, int) and part < len(given)
    return isinstance(given, dict) and part in given
