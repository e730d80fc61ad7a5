"""What is wrong with the settings, in one line."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

BOUNDS = {
    "greater_than": (">", "gt"),
    "greater_than_equal": (">=", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("<=", "le"),
}
KINDS = {"int_parsing": "an integer", "float_parsing": "a number", "finite_number": "finite"}


def one_line(error: ValidationError) -> str:
    """All that is wrong, naming each setting by its flag and its variable."""
    return "; ".join(_describe(detail) for detail in error.errors())


def _describe(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    name = str(detail["loc"][0]) if detail["loc"] else None
    if "error" in context:
        text = str(context["error"])
    elif detail["type"] in BOUNDS:
        sign, key = BOUNDS[detail["type"]]
        text = f"`{name}` must be {sign} {context[key]}"
    elif detail["type"] == "literal_error":
        text = f"`{name}` must be {context['expected']}, not {detail['input']!r}"
    elif detail["type"] in KINDS:
        text = f"`{name}` must be {KINDS[detail['type']]}, not {detail['input']!r}"
    else:
        text = f"`{name}`: {detail['msg']}"
    return f"{text} (--{flag_name(name)}, {name.upper()})" if name else text


def flag_name(field: str) -> str:
    """A setting's name on the command line, without the dashes."""
    return field.replace("_", "-")
