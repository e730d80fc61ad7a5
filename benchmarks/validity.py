"""Whether constrained outputs are what their schemas say."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from benchmarks.measurement import Level, Measurement


def validity_figures(level: Level) -> dict[str, Any]:
    """How many outputs are whole (not cut at the limit of tokens), and how many of these valid.

    Free ones do not count: some servers end them at EOS.
    """
    whole = [m for m in level.measurements if m.request.schema is not None and not m.is_cut]
    problems = [problem for m in whole if (problem := invalidity(m)) is not None]
    return {
        "whole": len(whole),
        "valid": len(whole) - len(problems),
        "first_invalid": next(iter(problems), None),
    }


def invalidity(measurement: Measurement) -> str | None:
    """What is wrong with a constrained output; None if it is valid."""
    schema = measurement.request.schema
    assert schema is not None
    try:
        jsonschema.validate(json.loads(measurement.text), schema)
    except (json.JSONDecodeError, jsonschema.ValidationError) as error:
        return f"{error}: {measurement.text}"
    return None
