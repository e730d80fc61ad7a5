"""What a request's `grammar` may say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_router.errors import ValidationError
from tokenloom_server.api.items import Items

STRICT = ConfigDict(strict=True, extra="forbid")


def _as_object(schema: object) -> object:
    """`true` is a schema, too: the one that allows everything."""
    return {} if schema is True else schema


AsObject = BeforeValidator(_as_object)
Schema = Annotated[str | dict[str, Any], AsObject]
"""An object, or its JSON text."""


class JsonForm(BaseModel):
    """What all grammars of JSON may say besides."""

    model_config = STRICT

    whitespace_pattern: str | None = Field(
        default=None,
        description="Regular expression of white space between parts; without it there is none "
        "(not in TGI)",
    )
    lenient: bool = Field(
        default=False,
        description="Leave out schema keywords that the constraint engine does not know, with "
        "`warnings` in the response, instead of refusing the schema (not in TGI)",
    )

    def schema_spec(self, schema: str | dict[str, Any]) -> ConstraintSpec:
        """The constraint of a schema, with what this form says."""
        return ConstraintSpec(
            "json_schema",
            _schema_text(schema),
            whitespace_pattern=self.whitespace_pattern,
            lenient=self.lenient,
        )


class JsonGrammar(JsonForm):
    """The output is JSON that a JSON Schema describes."""

    type: Literal["json"]
    value: Schema = Field(description="The schema: an object, or its JSON text")

    def to_spec(self) -> ConstraintSpec:
        """As the router takes it."""
        return self.schema_spec(self.value)


class JsonObjectGrammar(JsonForm):
    """The output is a JSON object, of any shape if no JSON Schema is given."""

    type: Literal["json_object"]
    value: Schema | None = Field(
        default=None, description="The schema: an object, or its JSON text"
    )

    def to_spec(self) -> ConstraintSpec:
        """As the router takes it."""
        if self.value is None:
            return ConstraintSpec("json_object", whitespace_pattern=self.whitespace_pattern)
        return self.schema_spec(self.value)


class RegexGrammar(BaseModel):
    """The output matches a regular expression, from its first character to its last."""

    model_config = STRICT

    type: Literal["regex"]
    value: str

    def to_spec(self) -> ConstraintSpec:
        """As the router takes it."""
        return ConstraintSpec("regex", self.value)


class ChoiceGrammar(BaseModel):
    """The output is one of some strings (not in TGI)."""

    model_config = STRICT

    type: Literal["choice"]
    value: Items[str] = Field(min_length=1)

    def to_spec(self) -> ConstraintSpec:
        """As the router takes it."""
        return ConstraintSpec("choice", _json_text(self.value))


class TextGrammar(BaseModel):
    """The output is a sentence of a context-free grammar, in Lark or GBNF (not in TGI)."""

    model_config = STRICT

    type: Literal["grammar"]
    value: str

    def to_spec(self) -> ConstraintSpec:
        """As the router takes it."""
        return ConstraintSpec("grammar", self.value)


class StructuralTagGrammar(JsonForm):
    """Free text with constrained parts in it (not in TGI)."""

    type: Literal["structural_tag"]
    value: dict[str, Any] = Field(
        description="`structures` and `triggers`, or a `format`, as vLLM and XGrammar have them"
    )

    def to_spec(self) -> ConstraintSpec:
        """As the router takes it."""
        return ConstraintSpec(
            "structural_tag",
            _json_text(self.value),
            whitespace_pattern=self.whitespace_pattern,
            lenient=self.lenient,
        )


class NamedSchema(BaseModel):
    """A JSON Schema with a name."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)

    name: str | None = Field(default=None, description="For the client's own use")
    json_schema: Schema = Field(alias="schema")
    strict: bool | None = Field(
        default=None,
        description="The output obeys the schema in any case; true cannot be had with `lenient`",
    )


class JsonSchemaGrammar(JsonForm):
    """The output is JSON that a named JSON Schema describes."""

    type: Literal["json_schema"]
    value: NamedSchema

    def to_spec(self) -> ConstraintSpec:
        """As the router takes it."""
        if self.value.strict and self.lenient:
            raise ValidationError("`strict` and `lenient` exclude each other")
        return self.schema_spec(self.value.json_schema)


Grammar = Annotated[
    JsonGrammar
    | JsonObjectGrammar
    | RegexGrammar
    | JsonSchemaGrammar
    | ChoiceGrammar
    | TextGrammar
    | StructuralTagGrammar,
    Field(discriminator="type"),
]


def _schema_text(schema: str | dict[str, Any]) -> str:
    return schema if isinstance(schema, str) else _json_text(schema)


def _json_text(value: dict[str, Any] | list[str]) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        raise ValidationError("grammar is not valid: nested too deeply") from None
    except UnicodeEncodeError:
        raise ValidationError("grammar is not valid: not Unicode text") from None
