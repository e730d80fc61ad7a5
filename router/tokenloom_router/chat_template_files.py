"""The chat template that lies beside a model's weights, and the names of its special tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT = "default"
WITH_TOOLS = "tool_use"
"""The names that a model gives to its templates if it has several."""


@dataclass(frozen=True, slots=True)
class ChatTemplateFiles:
    """What a model's folder says of chats."""

    templates: dict[str, str]
    """By name; empty if the model has none."""
    special_tokens: dict[str, str | list[str]]
    """What templates know as `bos_token` and the like."""

    @classmethod
    def read(cls, folder: Path, tokenizer_config: Path | None = None) -> ChatTemplateFiles:
        """Read the folder. Raise OSError or ValueError if a file in it is broken.

        `tokenizer_config` stands in for the folder's own; a template in it for all of its.
        """
        config = _read_json(tokenizer_config or folder / "tokenizer_config.json")
        templates = _named(config.get("chat_template"))
        if tokenizer_config is None or not templates:
            templates |= _other_templates(folder)
        tokens = config | _read_json(folder / "special_tokens_map.json")
        special = {
            name: _content(token) for name, token in tokens.items() if name.endswith("_token")
        }
        return cls(templates, {name: text for name, text in special.items() if text is not None})

    def template(self, *, with_tools: bool = False) -> str | None:
        """The template of a chat, with tools or without; None if there is none."""
        if with_tools and WITH_TOOLS in self.templates:
            return self.templates[WITH_TOOLS]
        if DEFAULT not in self.templates and len(self.templates) == 1:
            return next(iter(self.templates.values()))
        return self.templates.get(DEFAULT)


def _other_templates(folder: Path) -> dict[str, str]:
    """Those in files of their own."""
    templates = _named(_read_json(folder / "chat_template.json").get("chat_template"))
    more = folder / "additional_chat_templates"
    files = {path.stem: path for path in sorted(more.glob("*.jinja"))}
    files[DEFAULT] = folder / "chat_template.jinja"
    for name, path in files.items():
        if path.is_file():
            templates[name] = path.read_text(encoding="utf-8")
    return templates


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    value = json.loads(file.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}


def _named(value: object) -> dict[str, str]:
    """A template, or a list of `{"name": ..., "template": ...}`."""
    if isinstance(value, str):
        return {DEFAULT: value}
    if not isinstance(value, list):
        return {}
    return {entry["name"]: entry["template"] for entry in value if isinstance(entry, dict)}


def _content(token: object) -> str | None:
    """A special token is its text, or an object that has it."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
