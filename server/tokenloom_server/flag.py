"""How a setting becomes a flag: its group, its description, its bounds."""

from __future__ import annotations

from typing import Any

from pydantic import Field, JsonValue

MODEL = "Model"
HTTP = "HTTP server"
LIMITS = "Limits of a request"
BATCHING = "Batching and memory"
ENGINE = "Engine"
CONSTRAINTS = "Constraints"
OPERATION = "Operation"
TGI = "Flags of TGI without a use here"


def flag(
    default: object,
    group: str,
    description: str,
    *,
    gt: int | None = None,
    ge: int | None = None,
    le: int | None = None,
    short: str | None = None,
) -> Any:  # noqa: ANN401 (the field's own annotation says more)
    """One setting, the bounds of its value, and the flag's short form."""
    extra: dict[str, JsonValue] = {"group": group, "short": short}
    return Field(default, description=description, json_schema_extra=extra, gt=gt, ge=ge, le=le)
