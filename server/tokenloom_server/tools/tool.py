"""A tool that the model may call, and which calls a request allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Choice = Literal["auto", "none", "required"]
NO_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
OPEN = frozenset(
    {
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "if",
    }
)
"""Keywords that may allow properties besides those under `properties`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function of the client's."""

    number: int
    """Its place among the request's tools."""
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """The JSON Schema of its arguments; None if it takes none."""
    strict: bool = False
    """Whether a schema that cannot be enforced as a whole is refused, and not served leniently."""

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the JSON object with its arguments.

        A function takes those that it names, and no others unless it says so.
        """
        if self.parameters is None:
            return NO_PARAMETERS
        schema = {"type": "object", **self.parameters}
        if "properties" in schema and OPEN.isdisjoint(schema):
            schema["additionalProperties"] = False
        return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """The tools that an answer may call, and whether it must."""

    tools: tuple[Tool, ...] = ()
    """All that the model is told of."""
    mode: Choice = "none"
    only: str | None = None
    """The one tool that must be called."""
    several: bool = True
    """Whether an answer may have more than one call."""

    @property
    def field(self) -> str | None:
        """What is to blame for a grammar that is due to tools alone; None if there are none."""
        return "tools" if self.callable else None

    @property
    def callable(self) -> tuple[Tool, ...]:
        """Those that may be called."""
        if self.mode == "none":
            return ()
        return tuple(tool for tool in self.tools if self.only in (None, tool.name))
