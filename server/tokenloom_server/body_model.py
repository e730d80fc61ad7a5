"""What a route takes: a model that bodies are validated as."""

from __future__ import annotations

from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from tokenloom_server.strict_json import parse_object


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
            told = {**first, "loc": ("body", *first["loc"])}
            raise InvalidBody(RequestValidationError([told])) from None
