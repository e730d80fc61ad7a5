"""What a request's `grammar` may say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_router.errors import ValidationError

STRICT = ConfigDict(strict=True, extra="forbid")


class JsonGrammar(BaseModel):
    """The output is JSON that a JSON Schema describes."""

    model_config = STRICT

    type: Literal["json"]
    value: str | dict[str, Any] = Field(description="The schema: an object, or its JSON text")

    def to_spec(self) -> ConstraintSpec:
        """As the router takes it."""
        return ConstraintSpec("json_schema", _schema_text(self.value))


class JsonObjectGrammar(BaseModel):
    """The output is a JSON object, of any shape if no JSON Schema is given."""

    model_config = STRICT

    type: Literal["json_object"]
    value: str | dict[str, Any] | None = Field(
        default=None, description="The schema: an object, or its JSON text"
    )

    def to_spec(self) -> ConstraintSpec:
        """As the router takes it."""
        if self.value is None:
            return ConstraintSpec("json_object")
        return ConstraintSpec("json_schema", _schema_text(self.value))


class RegexGrammar(BaseModel):
    """The output matches a regular expression, from its first character to its last."""

    model_config = STRICT

    type: Literal["regex"]
    value: str

    def to_spec(self) -> ConstraintSpec:
        """As the router takes it."""
        return ConstraintSpec("regex", self.value)


class NamedSchema(BaseModel):
    """A JSON Schema with a name."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)

    name: str | None = Field(default=None, description="For the client's own use")
    json_schema: str | dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(
        default=None, description="The output obeys the schema in any case; this changes nothing"
    )


class JsonSchemaGrammar(BaseModel):
    """The output is JSON that a named JSON Schema describes."""

    model_config = STRICT

    type: Literal["json_schema"]
    value: NamedSchema

    def to_spec(self) -> ConstraintSpec:
        """As the router takes it."""
        return ConstraintSpec("json_schema", _schema_text(self.value.json_schema))


Grammar = Annotated[
    JsonGrammar | JsonObjectGrammar | RegexGrammar | JsonSchemaGrammar,
    Field(discriminator="type"),
]


def _schema_text(schema: str | dict[str, Any]) -> str:
    if isinstance(schema, str):
        return schema
    try:
        return msgspec.json.encode(schema).decode()
    except RecursionError:
        raise ValidationError("grammar is not valid: nested too deeply") from None
    except UnicodeEncodeError:
        raise ValidationError("grammar is not valid: not Unicode text") from None
