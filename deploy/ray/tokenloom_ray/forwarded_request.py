"""A request on its way from the ingress to a replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from tokenloom_ray.prompt_prefix import prefix_hashes

REPLICA_ID = "x-replica-id"
"""Response header that names the replica."""
FORWARDED = (
    "type",
    "asgi",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "root_path",
    "query_string",
    "headers",
    "client",
    "server",
)
"""Keys of an ASGI scope that describe the request itself."""


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """An HTTP request as ASGI describes it, and what its route through Ray depends on."""

    scope: dict[str, Any]
    body: bytes
    prefixes: tuple[bytes, ...]
    """Hashes of the prompt's prefixes, the shortest first."""
    tried: frozenset[str] = frozenset()
    """Replicas that failed to respond."""

    @classmethod
    def create(cls, scope: Scope, body: bytes) -> ForwardedRequest:
        """Make a request of what an ASGI application received."""
        forwarded = {key: scope[key] for key in FORWARDED if key in scope}
        return cls(forwarded, body, prefix_hashes(body))
