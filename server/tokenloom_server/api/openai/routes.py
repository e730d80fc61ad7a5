"""The routes of OpenAI's dialect."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import anyio
from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from tokenloom_router.chat_template import ChatPrompt
from tokenloom_router.errors import ValidationError
from tokenloom_router.request import GenerateRequest
from tokenloom_router.router import Router
from tokenloom_server.answer_form import AnswerForm, AnswerPlan
from tokenloom_server.api.headers import compute_type
from tokenloom_server.api.openai.chat_answer import ChatAnswer, ChatResponseBody
from tokenloom_server.api.openai.chat_request import ChatBody
from tokenloom_server.api.openai.completion_answer import (
    CompletionAnswer,
    CompletionResponseBody,
)
from tokenloom_server.api.openai.completion_request import CompletionBody
from tokenloom_server.api.openai.envelope import Envelope
from tokenloom_server.api.openai.errors import OpenAIErrorBody
from tokenloom_server.api.openai.models import ServedModel, model_routes
from tokenloom_server.api.openai.response import Order, StreamedAnswer, WholeAnswer
from tokenloom_server.api.openai.responses_answer import ResponseBody, ResponsesAnswer
from tokenloom_server.api.openai.responses_request import ResponsesBody
from tokenloom_server.api.openai.responses_stream import StreamedResponse
from tokenloom_server.api.openai.route import OpenAIRoute
from tokenloom_server.reasoning import ReasoningTags
from tokenloom_server.settings import Settings

MANY_ITEMS = 500
"""Of a chat: so many messages take longer than streams shall wait for them."""
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": OpenAIErrorBody, "description": "The request breaks a rule"},
    404: {"model": OpenAIErrorBody, "description": "The request names another model"},
    429: {"model": OpenAIErrorBody, "description": "No permit is free: try again later"},
    500: {"model": OpenAIErrorBody, "description": "The engine failed while it generated"},
    503: {
        "model": OpenAIErrorBody,
        "description": "The engine is starting, or the server stopping",
    },
}


class OpenAIResponses:
    """Makes a route's response from its body."""

    def __init__(self, router: Router, settings: Settings) -> None:
        self._router = router
        self._settings = settings
        self.model = ServedModel(router, settings.served_model_name)

    def completion(self, body: CompletionBody) -> Response:
        """Generate the texts that follow prompts. Raises ValidationError."""
        router = self._router
        envelope = Envelope("cmpl", self.model.check(body.model), body.request_id)
        self._check_number(len(body.prompts), body.num_sequences)
        requests = body.to_requests(router.sampling_defaults)
        order = Order(
            router=router,
            requests=requests,
            answer=lambda streams: CompletionAnswer(body, envelope, router, streams),
            words=body.words,
            compute_type=compute_type(router, self._settings),
            wants_usage=body.wants_usage,
        )
        return StreamedAnswer(order) if body.stream else WholeAnswer(order)

    async def chat(self, body: ChatBody) -> Response:
        """Generate the answer to a chat. Raises ValidationError."""
        router = self._router
        envelope = Envelope("chatcmpl", self.model.check(body.model), body.request_id)
        plan, request = await self._planned(body)
        self._check_number(1, request.n)
        order = Order(
            router=router,
            requests=[request],
            answer=lambda streams: ChatAnswer(body, plan, envelope, router, streams),
            words=body.words,
            compute_type=compute_type(router, self._settings),
            wants_usage=body.wants_usage,
        )
        return StreamedAnswer(order) if body.stream else WholeAnswer(order)

    async def response(self, body: ResponsesBody) -> Response:
        """Generate a response. Raises ValidationError."""
        router = self._router
        envelope = Envelope("resp", self.model.check(body.model))
        plan, request = await self._planned(body)
        order = Order(
            router=router,
            requests=[request],
            answer=lambda streams: ResponsesAnswer(body, plan, envelope, router, streams),
            words=body.words,
            compute_type=compute_type(router, self._settings),
        )
        return StreamedResponse(order) if body.stream else WholeAnswer(order)

    async def chat_request(self, body: ChatBody) -> GenerateRequest:
        """A chat as the router takes it, for other routes. Raises ValidationError."""
        self.model.check(body.model)
        _, request = await self._planned(body)
        return request

    @cached_property
    def _form(self) -> AnswerForm:
        template = self._router.chat_template.files.template(with_tools=True)
        tags = ReasoningTags.parse(self._settings.reasoning_parser)
        return AnswerForm(template, self._settings.tool_call_parser, tags)

    async def _planned(self, body: ChatBody | ResponsesBody) -> tuple[AnswerPlan, GenerateRequest]:
        """A chat's request with what tools and reasoning make of it.

        Raises:
            ValidationError: its message has the names of the body's fields.
        """
        try:
            return await self._plan(body)
        except ValidationError as error:
            raise ValidationError(body.words.translated(error.reason)) from None

    async def _plan(self, body: ChatBody | ResponsesBody) -> tuple[AnswerPlan, GenerateRequest]:
        form, router = self._form, self._router
        convert = partial(body.to_request, router.chat_template, router.sampling_defaults)
        if body.num_items > MANY_ITEMS:
            request = await anyio.to_thread.run_sync(convert)
        else:
            request = convert()
        choice = body.calls()
        assert request.chat is not None
        chat = form.prompt(request.chat, choice)
        plan = AnswerPlan(form, choice, is_open=await self._is_open(chat))
        text = request.constraint
        constraint = form.constraint(choice, text, is_open=plan.is_open)
        scope = form.stop_scope(choice, text, is_open=plan.is_open)
        return plan, replace(request, chat=chat, constraint=constraint, stop_scope=scope)

    async def _is_open(self, chat: ChatPrompt) -> bool:
        """Whether the prompt ends inside of reasoning: the model's template may begin it."""
        tags = self._form.reasoning
        if tags is None:
            return False
        if chat.continue_final_message:
            return tags.is_open_in(chat.messages[-1]["content"])
        prompt, _ = await self._router.tokenize_chat(chat)
        return tags.ends(prompt)

    def _check_number(self, num_prompts: int, num_sequences: int) -> None:
        """Raise ValidationError if a request alone would take more permits than there are."""
        most = self._settings.max_client_batch_size
        if num_prompts > most:
            raise ValidationError(
                f"`prompt` must have <= {most} prompts (the server's --max-client-batch-size). "
                f"Given: {num_prompts}"
            )
        permits = self._router.limits.max_concurrent_requests
        if num_prompts * num_sequences > permits:
            raise ValidationError(
                f"`n` (or `best_of`) times the number of prompts must be <= {permits} (the "
                f"server's --max-concurrent-requests). Given: {num_prompts * num_sequences}"
            )


def openai_routes(router: Router, settings: Settings) -> APIRouter:
    """POST /v1/completions, /v1/chat/completions and /v1/responses, GET /v1/models."""
    responses = OpenAIResponses(router, settings)
    routes = APIRouter(route_class=OpenAIRoute, tags=["OpenAI"], responses=ERRORS)

    @routes.post("/v1/completions", **_answers(CompletionResponseBody))
    async def completions(body: CompletionBody) -> Response:
        """Generate the texts that follow one prompt or several."""
        return responses.completion(body)

    @routes.post("/v1/chat/completions", **_answers(ChatResponseBody))
    async def chat_completions(body: ChatBody) -> Response:
        """Generate the answer to a chat."""
        return await responses.chat(body)

    @routes.post("/v1/responses", **_answers(ResponseBody))
    async def create_response(body: ResponsesBody) -> Response:
        """Generate a response to messages, calls and their outputs. Nothing is stored."""
        return await responses.response(body)

    routes.include_router(model_routes(responses.model))
    return routes


def _answers(whole: object) -> dict[str, Any]:
    """What the documentation says of a route's answer."""
    return {
        "response_class": JSONResponse,  # or the document calls the answer a text
        "status_code": 200,
        "responses": {
            200: {
                "model": whole,
                "description": "The answer; with `stream`, server-sent events with its chunks",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            }
        },
    }
