from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenloom_router.chat_template_files import ChatTemplateFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {"chat_template": "the model's", "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_file_of_its_own_outranks_the_configuration(folder: Path) -> None:
    assert ChatTemplateFiles.read(folder).template() == "the model's"
    (folder / "chat_template.jinja").write_text("the file's")
    files = ChatTemplateFiles.read(folder)
    assert files.template() == "the file's"
    assert files.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_a_given_configuration_outranks_all_of_the_models(folder: Path, tmp_path: Path) -> None:
    (folder / "chat_template.jinja").write_text("the file's")
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"chat_template": "the given", "bos_token": "<bos>"}))
    files = ChatTemplateFiles.read(folder, given)
    assert files.template() == "the given"
    assert files.special_tokens == {"bos_token": "<bos>"}
    given.write_text(json.dumps({"bos_token": "<bos>"}))
    assert ChatTemplateFiles.read(folder, given).template() == "the file's"


def test_several_templates(folder: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    files = ChatTemplateFiles.read(folder)
    assert (files.template(), files.template(with_tools=True)) == ("plain", "tools")
