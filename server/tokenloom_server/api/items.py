"""Lists in bodies."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Field

T = TypeVar("T")

Items = Annotated[list[T], Field(fail_fast=True)]
"""A list in which nothing behind the first wrong item is looked at: one fault is told."""
MAX_ITEMS = 1000
"""Of lists of objects that may have a few: more are not looked at at all."""
