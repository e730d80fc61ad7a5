"""What a model's generation_config.json says of how to sample from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

FILE = "generation_config.json"
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The values of fields that a request leaves out, where its dialect asks the model for them.

    None is the dialect's own. The file's other fields are not read.
    """

    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] | None = None
    """0 and -1 are off."""
    min_p: Share | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] | None = None

    @classmethod
    def read(cls, folder: Path) -> SamplingDefaults:
        """Read a model's folder. Raise OSError, or ValueError if the file is wrong."""
        file = folder / FILE
        return msgspec.json.decode(file.read_bytes(), type=cls) if file.is_file() else cls()

    def __str__(self) -> str:
        """As the start tells it; empty if there are none."""
        given: dict[str, object] = msgspec.to_builtins(self)
        return ", ".join(f"{name} {value}" for name, value in given.items())
