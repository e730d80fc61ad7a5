"""What flags hold, and how their texts are read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from tokenloom_server.flag_values import (
    as_address,
    as_call_format,
    as_endpoint,
    as_file,
    as_key,
    as_level,
    as_list,
    as_quantization,
    as_reasoning,
    as_route,
    as_switch,
)

Switch = Annotated[bool, BeforeValidator(as_switch)]
MaybeSwitch = Annotated[bool | None, BeforeValidator(as_switch)]
Level = Annotated[Literal["trace", "debug", "info", "warn", "error"], BeforeValidator(as_level)]
File = Annotated[str | None, AfterValidator(as_file)]
Key = Annotated[str | None, AfterValidator(as_key)]
Endpoint = Annotated[str | None, AfterValidator(as_endpoint)]
Quantization = Annotated[Literal["int8"] | None, BeforeValidator(as_quantization)]
CallFormatName = Annotated[str, AfterValidator(as_call_format)]
ReasoningOption = Annotated[str, AfterValidator(as_reasoning)]
Route = Annotated[str | None, AfterValidator(as_route)]
Address = Annotated[str, AfterValidator(as_address)]
Backends = Annotated[tuple[str, ...], NoDecode, BeforeValidator(as_list)]
Texts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(as_list)]
Size = Annotated[int, Field(ge=0, le=1024)]
Sizes = Annotated[tuple[Size, ...], NoDecode, BeforeValidator(as_list)]
