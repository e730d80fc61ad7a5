"""The model that is served, under the names that a request may call it by."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import APIRouter
from typing_extensions import TypedDict

from tokenloom_router.router import Router
from tokenloom_server.api.openai.errors import ModelNotFoundError, OpenAIErrorBody
from tokenloom_server.api.openai.route import OpenAIRoute

ANY = frozenset({"tgi", "dummy"})
"""What TGI's clients, and huggingface_hub's where they are given an address, call every model."""


class ModelBody(TypedDict):
    """A model."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class ModelListBody(TypedDict):
    """The models that are served: one."""

    object: str
    data: list[ModelBody]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The one model of a server."""

    router: Router
    names: Sequence[str] = ()
    """What the operator calls it."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        """The operator's for it, its Hub id, or the name of its local folder or file."""
        if self.names:
            return self.names[0]
        model_id = self.router.model.model_id
        path = Path(model_id).expanduser()
        return path.name.removesuffix(".gguf") if path.exists() else model_id

    def check(self, name: str | None) -> str:
        """Return what to call the model in an answer. Raise ModelNotFoundError if it is another."""
        if name is None:
            return self.name
        model_id = self.router.model.model_id
        known = {*ANY, self.name, *self.names}
        if not self.names:
            known |= {model_id, Path(model_id).name}
        if name not in known:
            raise ModelNotFoundError(
                f"The model `{name[:200]}` does not exist: this server has `{self.name}`"
            )
        return name

    @property
    def body(self) -> ModelBody:
        """What is told of it."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "tokenloom",
            "max_model_len": self.router.limits.max_total_tokens,
        }


def model_routes(model: ServedModel) -> APIRouter:
    """GET /v1/models and /v1/models/{id}."""
    routes = APIRouter(route_class=OpenAIRoute, tags=["OpenAI"])

    @routes.head("/v1/models", include_in_schema=False)
    @routes.get("/v1/models")
    async def models() -> ModelListBody:
        """The model that is served."""
        return {"object": "list", "data": [model.body]}

    @routes.head("/v1/models/{id:path}", include_in_schema=False)
    @routes.get("/v1/models/{id:path}", responses={404: {"model": OpenAIErrorBody}})
    async def one_model(id: str) -> ModelBody:
        """The model that is served, by its name."""
        model.check(id)
        return model.body

    return routes
