"""What a chat's request may say of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tokenloom_router.errors import ValidationError
from tokenloom_router.parameters import validate_text
from tokenloom_server.api.grammar import AsObject
from tokenloom_server.api.items import Items
from tokenloom_server.tools.tool import Tool, ToolChoice

STRICT = ConfigDict(strict=True, extra="forbid")
MAX_TOOLS = 128
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class FunctionBody(BaseModel):
    """A function of the client's."""

    model_config = STRICT

    name: Name = Field(description="Letters, digits, `_`, `-` and `.`")
    description: str | None = Field(default=None, description="What it does, for the model")
    parameters: Annotated[dict[str, Any], AsObject] | None = Field(
        default=None,
        description="JSON Schema of its arguments, an object; without it there are none",
    )
    strict: bool | None = Field(
        default=None,
        description="Refuse a schema of which a keyword cannot be enforced; without it, that is "
        "left out with `warnings`",
    )


class ToolBody(BaseModel):
    """A tool that the model may call."""

    model_config = STRICT

    type: Literal["function"]
    function: FunctionBody


class ChosenFunction(BaseModel):
    """The name of a tool."""

    model_config = STRICT

    name: str


class NamedToolChoice(BaseModel):
    """The one tool that must be called."""

    model_config = STRICT

    type: Literal["function"] = "function"
    function: ChosenFunction


Tools = Annotated[Items[ToolBody], Field(max_length=MAX_TOOLS)]
Choice = NamedToolChoice | str
"""`auto`, `none`, `required`, or a tool: as an object, or, as in TGI, by its name alone."""


def tool_choice(
    tools: Sequence[ToolBody] | None, choice: Choice | None, parallel: bool | None
) -> ToolChoice:
    """Which calls a request allows. Raises ValidationError."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise ValidationError("`tool_choice` needs `tools`")
        return ToolChoice()
    known = tuple(_tool(number, body.function) for number, body in enumerate(tools))
    _check_names(known)
    several = parallel is not False
    match choice:
        case None | "auto":
            return ToolChoice(tools=known, mode="auto", several=several)
        case "none":
            return ToolChoice(tools=known, mode="none")
        case "required":
            return ToolChoice(tools=known, mode="required", several=several)
        case NamedToolChoice(function=function):
            return _only(known, function.name, "tool_choice.function.name")
        case str(name):
            return _only(known, name, "tool_choice")


def _only(tools: tuple[Tool, ...], name: str, field: str) -> ToolChoice:
    if all(tool.name != name for tool in tools):
        raise ValidationError(f"`{field}` must name one of `tools`. Given: {name}")
    return ToolChoice(tools=tools, mode="required", only=name, several=False)


def _tool(number: int, function: FunctionBody) -> Tool:
    parameters = function.parameters
    if parameters is not None and parameters.get("type", "object") != "object":
        raise ValidationError(
            f"`tools[{number}].function.parameters.type` must be object: arguments have names"
        )
    if function.description is not None:
        validate_text(f"tools[{number}].function.description", function.description)
    return Tool(
        number=number,
        name=function.name,
        description=function.description,
        parameters=parameters,
        strict=bool(function.strict),
    )


def _check_names(tools: tuple[Tool, ...]) -> None:
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise ValidationError(
                f"`tools[{tool.number}].function.name` is that of an earlier tool: {tool.name}"
            )
        seen.add(tool.name)
