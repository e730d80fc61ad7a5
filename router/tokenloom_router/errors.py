"""The one hierarchy of errors that a request can end with.

`error_type` is TGI's word for it. The dialects map these classes to HTTP statuses.
"""

from __future__ import annotations


class RequestError(Exception):
    """A request failed. `str(error)` is the message for the client."""

    error_type = "error"


class ValidationError(RequestError):
    """The request is at fault; the message names the field and the remedy."""

    error_type = "validation"

    def __init__(self, message: str) -> None:
        super().__init__(f"Input validation error: {message}")
        self.reason = message
        """The message without TGI's words before it."""


class TooLongError(ValidationError):
    """Prompt and output together exceed what the server allows."""

    def __init__(self, input_length: int, max_new_tokens: int, max_total_tokens: int) -> None:
        super().__init__(
            f"`inputs` tokens + `max_new_tokens` must be <= {max_total_tokens}. "
            f"Given: {input_length} `inputs` tokens and {max_new_tokens} `max_new_tokens`"
        )
        self.input_length = input_length
        self.max_new_tokens = max_new_tokens
        self.max_total_tokens = max_total_tokens


class TooLongPromptError(ValidationError):
    """The prompt alone exceeds what the server allows."""

    def __init__(self, input_length: int, max_input_tokens: int) -> None:
        super().__init__(
            f"`inputs` must have less than {max_input_tokens} tokens. Given: {input_length}"
        )
        self.input_length = input_length
        self.max_input_tokens = max_input_tokens


class PromptError(ValidationError):
    """One of the prompts of a request is at fault."""

    def __init__(self, index: int, cause: ValidationError) -> None:
        super().__init__(f"prompt {index}: {cause.reason}")
        self.index = index
        self.cause = cause


class OverloadedError(RequestError):
    """No permit is free. The client should try again later."""

    error_type = "overloaded"

    def __init__(self) -> None:
        super().__init__("Model is overloaded")


class UnavailableError(RequestError):
    """The engine is not there: loading, restarting, or shutting down."""

    error_type = "unavailable"


class GenerationError(RequestError):
    """The engine failed while it generated."""

    error_type = "generation"

    def __init__(self, message: str) -> None:
        super().__init__(f"Request failed during generation: {message}")


class ConstraintError(RequestError):
    """The constraint came to an end without a text: the request is at fault.

    No text matches it any more, or it exceeds a limit, which did not show when it was tried.
    """

    error_type = "constraint"

    def __init__(self, message: str) -> None:
        super().__init__(f"Request failed during generation: {message}")


class IncompleteGenerationError(RequestError):
    """The stream of outputs ended without a last one."""

    error_type = "incomplete_generation"

    def __init__(self) -> None:
        super().__init__("Incomplete generation")


class EngineStartError(Exception):
    """The engine cannot start with these settings. `str(error)` is one line for the operator."""
