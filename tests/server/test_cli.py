from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tokenloom_server.cli import launcher, main
from tokenloom_server.environment import prepare_hub
from tokenloom_server.settings import Settings

TGI_FLAGS = [
    "model-id",
    "revision",
    "dtype",
    "port",
    "hostname",
    "max-concurrent-requests",
    "max-input-tokens",
    "max-total-tokens",
    "max-batch-prefill-tokens",
    "max-batch-total-tokens",
    "max-batch-size",
    "max-waiting-tokens",
    "waiting-served-ratio",
    "max-best-of",
    "max-stop-sequences",
    "max-top-n-tokens",
    "validation-workers",
    "trust-remote-code",
    "disable-grammar-support",
    "json-output",
    "cors-allow-origin",
    "api-key",
    "payload-limit",
    "graceful-termination-timeout",
    "quantize",
    "speculate",
    "kv-cache-dtype",
    "sharded",
    "num-shard",
    "max-input-length",
    "cuda-graphs",
    "prometheus-port",
    "shard-uds-path",
    "master-addr",
    "master-port",
    "huggingface-hub-cache",
    "weights-cache-override",
    "disable-custom-kernels",
    "cuda-memory-fraction",
    "rope-scaling",
    "rope-factor",
    "otlp-endpoint",
    "otlp-service-name",
    "watermark-gamma",
    "watermark-delta",
    "ngrok",
    "ngrok-authtoken",
    "ngrok-edge",
    "tokenizer-config-path",
    "env",
    "max-client-batch-size",
    "lora-adapters",
    "usage-stats",
    "enable-prefill-logprobs",
]
"""All of TGI's launcher."""


def run_main(*arguments: str) -> int:
    return run(main, *arguments)


def run(command: Callable[[Sequence[str]], int], *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        sys.exit(command(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_help_shows_every_flag_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("serve", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert (f"[{name.upper()}]" in text) == (name != "env")
        assert isinstance(field.json_schema_extra, dict)
        assert f"{field.json_schema_extra['group']}:" in text
        assert field.description
    assert "(default: 3000) [PORT]" in text
    assert "(default: 0.0) [WAITING_SERVED_RATIO]" in text
    assert all(f"--{flag} " in text for flag in TGI_FLAGS)


@pytest.mark.parametrize("arguments", [["--version"], ["-V"], ["serve", "-V"]])
def test_version(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run_main(*arguments) == 0
    assert capsys.readouterr().out.startswith("tokenloom ")


def test_the_launcher_has_the_flags_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(launcher, "-h") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"--{flag} " in text for flag in TGI_FLAGS)
    assert "-p N, --port N" in text
    assert "-e, --env" in text
    assert "-g N, --graceful-termination-timeout N" in text
    assert run(launcher, "-V") == 0
    assert capsys.readouterr().out.startswith("tokenloom ")
    assert run(launcher, "-p", "x") == 2
    assert capsys.readouterr().err == (
        "text-generation-launcher: error: `port` must be an integer, not 'x' (--port, PORT)\n"
    )


def test_the_launcher_is_installed_under_tgis_name() -> None:
    script = Path(sys.executable).with_name("text-generation-launcher")
    ended = subprocess.run([script, "--ngrok"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("text-generation-launcher: error: `ngrok` is not built")


def test_the_hubs_library_hears_of_tgis_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_API_TOKEN", "token")
    prepare_hub("/models")
    assert (os.environ["HF_TOKEN"], os.environ["HF_HUB_CACHE"]) == ("token", "/models")


def test_the_hubs_library_has_a_folder_where_there_is_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", "/proc")
    prepare_hub(None)
    assert Path(os.environ["HF_HOME"]).is_relative_to(tmp_path)


def test_the_environment_report_tells_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "do not tell")
    assert run_main("env") == 0
    report = capsys.readouterr().out
    facts = dict(line.split(":", 1) for line in report.splitlines())
    assert {"tokenloom", "Python", "platform", "CPU", "GPU 0", "torch", "Hub models"} <= set(facts)
    assert facts["torch"].strip()[0].isdigit()
    assert "do not tell" not in report


def test_the_launcher_prints_its_environment_and_goes_on() -> None:
    script = Path(sys.executable).with_name("text-generation-launcher")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ended = subprocess.run(
            [script, "-e", "--hostname", "127.0.0.1", "-p", port], capture_output=True, text=True
        )
    assert ended.stdout.startswith("tokenloom")
    assert "\ntorch" in ended.stdout
    assert f"cannot listen on 127.0.0.1 port {port}" in ended.stderr
    assert ended.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--prot", "1"], "unrecognized arguments: --prot 1"),
        (["serve", "--por", "1"], "unrecognized arguments: --por 1"),
        (["serve", "--port"], "argument -p/--port: expected one argument"),
        (["serve", "--port", "x"], "`port` must be an integer, not 'x'"),
        (["serve", "--max-batch-size", "0"], "`max_batch_size` must be > 0"),
        (
            ["serve", "--max-input-tokens", "9", "--max-total-tokens", "9"],
            "`max_input_tokens` must be < `max_total_tokens`",
        ),
        (["serve", "--trust-remote-code=1"], "ignored explicit argument '1'"),
        (["serve", "--sharded", "true", "--num-shard", "1"], "`sharded` is true and `num_shard` 1"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run_main(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("tokenloom")
    assert message in line


def test_a_wrong_variable_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAX_TOTAL_TOKENS", "many")
    assert run_main("serve") == 2
    assert "(--max-total-tokens, MAX_TOTAL_TOKENS)" in capsys.readouterr().err


def test_settings_are_read_before_anything_heavy_is_imported() -> None:
    program = (
        "import sys; from tokenloom_server.cli import main; status = main(['serve'])\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'uvicorn'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    environment = {**os.environ, "PORT": "none"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "tokenloom serve: error: `port` must be an integer, not 'none' (--port, PORT)\n"
    )


def test_the_front_never_imports_torch() -> None:
    program = (
        "import sys, tokenloom_server.cli, tokenloom_server.serve\n"
        "sys.exit(' '.join({'torch', 'transformers'} & set(sys.modules)) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
