"""What the output must look like, in all the forms that OpenAI, vLLM, SGLang and TGI have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from tokenloom_engine.constraints.spec import JSON_KINDS, ConstraintSpec
from tokenloom_router.errors import ValidationError
from tokenloom_server.api.grammar import (
    STRICT,
    ChoiceGrammar,
    JsonForm,
    JsonGrammar,
    JsonObjectGrammar,
    RegexGrammar,
    Schema,
    StructuralTagGrammar,
    TextGrammar,
)
from tokenloom_server.api.items import Items

HAVE_WHITE_SPACE = JSON_KINDS | {"structural_tag"}
NamedSpec = tuple[str, ConstraintSpec]


class TextFormat(BaseModel):
    """Any text."""

    model_config = STRICT

    type: Literal["text"]

    def to_spec(self) -> ConstraintSpec | None:
        """As the router takes it."""
        return None


class SchemaFormat(BaseModel):
    """A JSON Schema with a name."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)

    name: str | None = Field(default=None, description="For the client's own use")
    description: str | None = Field(default=None, description="For the client's own use")
    json_schema: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = Field(
        default=None,
        description="Refuse a schema of which a keyword cannot be enforced; without it, that is "
        "left out with `warnings`. True cannot be had with `lenient`",
    )


class JsonSchemaFormat(JsonForm):
    """JSON that a schema describes: OpenAI's form, or TGI's, in which it is the `value`."""

    type: Literal["json_schema"]
    json_schema: SchemaFormat | None = None
    value: SchemaFormat | None = None

    def to_spec(self) -> ConstraintSpec | None:
        """As the router takes it."""
        given = self.json_schema or self.value
        if given is None or (self.json_schema and self.value):
            raise ValidationError("`response_format` must have one of `json_schema` and `value`")
        if given.strict and self.lenient:
            raise ValidationError("`response_format`: `strict` and `lenient` exclude each other")
        if given.json_schema is None:
            return ConstraintSpec("json_object", whitespace_pattern=self.whitespace_pattern)
        spec = self.schema_spec(given.json_schema)
        return msgspec.structs.replace(spec, lenient=not given.strict)


class StructuralTagFormat(JsonForm):
    """Free text with constrained parts in it, in either of vLLM's forms."""

    type: Literal["structural_tag"]
    structures: Items[dict[str, Any]] | None = None
    triggers: Items[str] | None = None
    format: dict[str, Any] | None = None

    def to_spec(self) -> ConstraintSpec | None:
        """As the router takes it."""
        parts = {"structures": self.structures, "triggers": self.triggers, "format": self.format}
        return StructuralTagGrammar(
            type="structural_tag",
            value={name: part for name, part in parts.items() if part is not None},
            whitespace_pattern=self.whitespace_pattern,
            lenient=self.lenient,
        ).to_spec()


ResponseFormat = Annotated[
    TextFormat
    | JsonObjectGrammar
    | JsonSchemaFormat
    | JsonGrammar
    | RegexGrammar
    | StructuralTagFormat,
    Field(discriminator="type"),
]


class StructuredOutputs(BaseModel):
    """vLLM's form: one of the first six, and how to read it."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)

    json_schema: Schema | None = Field(default=None, alias="json", description="A JSON Schema")
    json_object: bool | None = Field(default=None, description="Any JSON object")
    regex: str | None = None
    choice: Items[str] | None = Field(default=None, min_length=1)
    grammar: str | None = Field(default=None, description="In Lark or GBNF")
    structural_tag: Schema | None = None
    whitespace_pattern: str | None = Field(
        default=None, description="White space between the parts of JSON; without it there is none"
    )
    disable_any_whitespace: bool | None = Field(
        default=None, description="Has no effect: without a `whitespace_pattern` there is none"
    )
    disable_fallback: bool | None = Field(
        default=None, description="Has no effect: there is no other library to fall back to"
    )
    disable_additional_properties: Literal[False] | None = Field(
        default=None, description="Must not be true: say it in the schema"
    )
    lenient: bool = Field(
        default=False,
        description="Leave out schema keywords that the constraint engine does not know, with "
        "`warnings` in the response",
    )

    def specs(self, name: str) -> Iterator[NamedSpec]:
        """What is asked for, under the field's name. Raise ValidationError, naming that."""
        try:
            specs = list(self._specs())
        except ValidationError as error:
            words = error.reason
            if not words.startswith("grammar "):
                raise
            raise ValidationError(f"`{name}` {words.removeprefix('grammar ')}") from None
        if not specs:
            raise ValidationError(f"`{name}` must ask for a form of output")
        for spec in specs:
            if self.whitespace_pattern is not None and spec.kind not in HAVE_WHITE_SPACE:
                raise ValidationError(f"`{name}`: `whitespace_pattern` is for JSON")
            if self.lenient and spec.kind not in HAVE_WHITE_SPACE:
                raise ValidationError(f"`{name}`: `lenient` is for JSON schemas")
            yield name, spec

    def _specs(self) -> Iterator[ConstraintSpec]:
        form: dict[str, Any] = {
            "whitespace_pattern": self.whitespace_pattern,
            "lenient": self.lenient,
        }
        if self.json_schema is not None:
            yield JsonGrammar(type="json", value=self.json_schema, **form).to_spec()
        if self.json_object:
            yield JsonObjectGrammar(type="json_object", **form).to_spec()
        if self.regex is not None:
            yield RegexGrammar(type="regex", value=self.regex).to_spec()
        if self.choice is not None:
            yield ChoiceGrammar(type="choice", value=self.choice).to_spec()
        if self.grammar is not None:
            yield TextGrammar(type="grammar", value=self.grammar).to_spec()
        if isinstance(self.structural_tag, str):
            pattern = self.whitespace_pattern
            yield ConstraintSpec("structural_tag", self.structural_tag, pattern, self.lenient)
        elif self.structural_tag is not None:
            tag = self.structural_tag
            yield StructuralTagGrammar(type="structural_tag", value=tag, **form).to_spec()


class StructureFields(BaseModel):
    """The fields of a request that say what the output must look like. One of them may."""

    model_config = STRICT

    response_format: ResponseFormat | None = Field(
        default=None,
        description="`text`, `json_object`, `json_schema` (with `json_schema`), `structural_tag`, "
        "or TGI's `json` and `regex` (with `value`)",
    )
    structured_outputs: StructuredOutputs | None = Field(
        default=None, description="The same as vLLM has it"
    )
    guided_json: Schema | None = Field(default=None, description="Older form: a JSON Schema")
    guided_regex: str | None = Field(default=None, description="Older form")
    guided_choice: Items[str] | None = Field(default=None, description="Older form", min_length=1)
    guided_grammar: str | None = Field(default=None, description="Older form: Lark or GBNF")
    guided_json_object: bool | None = Field(default=None, description="Older form")
    guided_whitespace_pattern: str | None = Field(
        default=None, description="Older form: of `guided_json` and `guided_json_object`"
    )
    guided_decoding_backend: Literal["auto", "guidance", "llguidance"] | None = Field(
        default=None, description="The server chooses; it takes what these take"
    )
    regex: str | None = Field(default=None, description="SGLang's form")
    ebnf: str | None = Field(default=None, description="SGLang's form: Lark or GBNF")

    def constraint(self) -> NamedSpec | None:
        """The constraint, and the field that asks for it. Raise ValidationError if several do."""
        found = list(self._specs())
        for name, spec in found[1:]:
            if spec != found[0][1]:
                first = found[0][0]
                raise ValidationError(
                    f"`{name}` and `{first}` exclude each other"
                    if name != first
                    else f"`{name}` must ask for one form of output"
                )
        return found[0] if found else None

    def _specs(self) -> Iterator[NamedSpec]:
        if self.response_format is not None:
            spec = self.response_format.to_spec()
            if spec is not None:
                yield "response_format", spec
        if self.structured_outputs is not None:
            yield from self.structured_outputs.specs("structured_outputs")
        older: dict[str, dict[str, Any]] = {
            "guided_json": {"json": self.guided_json},
            "guided_regex": {"regex": self.guided_regex},
            "guided_choice": {"choice": self.guided_choice},
            "guided_grammar": {"grammar": self.guided_grammar},
            "guided_json_object": {"json_object": self.guided_json_object or None},
            "regex": {"regex": self.regex},
            "ebnf": {"grammar": self.ebnf},
        }
        pattern = self.guided_whitespace_pattern
        if pattern is not None and self.guided_json is None and not self.guided_json_object:
            raise ValidationError("`guided_whitespace_pattern` needs `guided_json`")
        for name, fields in older.items():
            if None in fields.values():
                continue
            space = pattern if name in ("guided_json", "guided_json_object") else None
            form = StructuredOutputs.model_validate({**fields, "whitespace_pattern": space})
            yield from form.specs(name)
