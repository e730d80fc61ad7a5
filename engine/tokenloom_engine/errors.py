"""Errors that the operator sees."""

from __future__ import annotations


class LoadError(Exception):
    """The model cannot be served. The message is one line: what is wrong, and what to do."""


class UnfaithfulError(LoadError):
    """The engine would compute something else than the model's own modules do."""
