"""The method and the route of a request, as metrics and log lines name them.

Clients choose methods and paths. Those that no route has are therefore named `other`.
"""

from __future__ import annotations

from starlette.types import Scope

METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS"})
OTHER = "other"


def method_label(scope: Scope) -> str:
    """The request's method."""
    return scope["method"] if scope["method"] in METHODS else OTHER


def route_label(scope: Scope) -> str:
    """The path of the request's route, once the application has routed it."""
    path: str = getattr(scope.get("route"), "path", OTHER)
    return path
