"""The fields of a response's request that are objects of their own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tokenloom_server.api.grammar import STRICT, AsObject, JsonObjectGrammar
from tokenloom_server.api.openai.structured_outputs import (
    JsonSchemaFormat,
    ResponseFormat,
    SchemaFormat,
    TextFormat,
)
from tokenloom_server.api.openai.tools import ChosenFunction, FunctionBody, Name, ToolBody


class FunctionTool(BaseModel):
    """A function that the model may call."""

    model_config = STRICT

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: Annotated[dict[str, Any], AsObject] | None = Field(
        default=None, description="JSON Schema of its arguments, an object"
    )
    strict: bool | None = Field(
        default=None,
        description="Refuse a schema of which a keyword cannot be enforced; without it, that is "
        "left out with `warnings`",
    )

    def to_body(self) -> ToolBody:
        """As chats have it."""
        fields = self.model_dump(exclude={"type"})
        return ToolBody(type="function", function=FunctionBody(**fields))


class ChosenTool(ChosenFunction):
    """The one tool that must be called."""

    type: Literal["function"]


class NamedSchemaFormat(BaseModel):
    """JSON that a schema describes."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)

    type: Literal["json_schema"]
    name: str
    json_schema: Annotated[dict[str, Any], AsObject] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ObjectFormat(BaseModel):
    """Any JSON object."""

    model_config = STRICT

    type: Literal["json_object"]


class TextBody(BaseModel):
    """What the text must look like."""

    model_config = STRICT

    format: Annotated[
        TextFormat | ObjectFormat | NamedSchemaFormat, Field(discriminator="type")
    ] = TextFormat(type="text")
    verbosity: Literal["medium"] | None = Field(default=None, description="There is one")

    def response_format(self) -> ResponseFormat:
        """As chats have it."""
        match self.format:
            case TextFormat():
                return self.format
            case ObjectFormat():
                return JsonObjectGrammar(type="json_object")
            case NamedSchemaFormat():
                fields = self.format.model_dump(exclude={"type"})
                return JsonSchemaFormat(type="json_schema", json_schema=SchemaFormat(**fields))


class ReasoningBody(BaseModel):
    """How to reason."""

    model_config = STRICT

    effort: str | None = Field(
        default=None, description="Handed to the chat template as `reasoning_effort`"
    )
    summary: None = Field(default=None, description="Must be absent: the whole is returned")
    generate_summary: None = Field(default=None, description="Must be absent")
