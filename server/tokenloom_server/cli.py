"""The command line: `tokenloom serve`, `generate`, `env`, `healthcheck`; TGI's launcher."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from tokenloom_engine.config import EngineConfig
from tokenloom_engine.errors import LoadError
from tokenloom_router.config import RouterConfig
from tokenloom_server.bundled_model import BundledModelError
from tokenloom_server.configs import engine_config, router_config
from tokenloom_server.environment import prepare_hub
from tokenloom_server.environment_report import environment_report
from tokenloom_server.flag import HTTP, TGI
from tokenloom_server.flags import add_flags
from tokenloom_server.settings import Settings
from tokenloom_server.settings_error import one_line

DESCRIPTION = "Serve a language model over HTTP, in the dialect of text-generation-inference."
GENERATE_DESCRIPTION = (
    "Answer the requests of a file, with the model in this machine. A run that was interrupted "
    "goes on where it was: give the same command again."
)
EPILOG = "Each flag can be set by the environment variable in brackets instead; the flag wins."


class RefusedError(Exception):
    """The settings cannot be used. The message is one line."""


class OneLineParser(argparse.ArgumentParser):
    """A parser whose complaints are one line on stderr and exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Say it in one line, without the usage."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = OneLineParser(prog="tokenloom", description=DESCRIPTION, allow_abbrev=False)
    _add_version(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        usage="%(prog)s [FLAGS]",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
    )
    _add_version(serve)
    add_flags(serve)
    generate = commands.add_parser(
        "generate",
        help="answer a file of requests, without a server",
        usage="%(prog)s --input FILE --output FILE [FLAGS]",
        description=GENERATE_DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
    )
    files = generate.add_argument_group("Files")
    files.add_argument(
        "--input", required=True, type=Path, metavar="FILE", help="requests, one JSON object a line"
    )
    files.add_argument(
        "--output", required=True, type=Path, metavar="FILE", help="where their answers go"
    )
    add_flags(generate, without=(HTTP, TGI))
    commands.add_parser("env", help="print what this installation runs on", allow_abbrev=False)
    commands.add_parser(
        "healthcheck",
        help="exit with 0 if the server in this container takes requests, else with 1",
        allow_abbrev=False,
    )
    return parser


def make_launcher_parser() -> argparse.ArgumentParser:
    """The parser of the command under TGI's name."""
    parser = OneLineParser(
        prog="text-generation-launcher",
        usage="%(prog)s [FLAGS]",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
    )
    _add_version(parser)
    add_flags(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    flags = vars(make_parser().parse_args(arguments))
    command = flags.pop("command")
    if command == "env":
        sys.stdout.write(environment_report(None))
        return 0
    if command == "healthcheck":
        return _healthcheck()
    if command == "generate":
        return _generate(f"tokenloom {command}", flags)
    return _serve(f"tokenloom {command}", flags)


def launcher(arguments: Sequence[str] | None = None) -> int:
    """Run `tokenloom serve` under the name of TGI's launcher; returns the exit status."""
    return _serve("text-generation-launcher", vars(make_launcher_parser().parse_args(arguments)))


def _healthcheck() -> int:
    """Check the server of this container at the address that its flags and variables set."""
    from tokenloom_server.healthcheck import failure, running_commands, server_flags

    flags = server_flags(running_commands())
    if flags is None:
        reason: str | None = "no server runs here"
    else:
        given = vars(make_launcher_parser().parse_args(flags))
        address = {name: given[name] for name in ("hostname", "port") if name in given}
        settings = Settings(**address)
        reason = failure(settings.hostname, settings.port)
    if reason is not None:
        sys.stderr.write(f"tokenloom healthcheck: {reason}\n")
    return 0 if reason is None else 1


def _generate(prog: str, flags: dict[str, Any]) -> int:
    input, output = flags.pop("input"), flags.pop("output")
    try:
        settings, engine, router = _configs(flags)
    except RefusedError as error:
        return _refuse(prog, str(error))

    from tokenloom_server.offline import generate

    return generate(settings, engine, router, input=input, output=output)


def _serve(prog: str, flags: dict[str, Any]) -> int:
    try:
        settings, engine, router = _configs(flags)
    except RefusedError as error:
        return _refuse(prog, str(error))
    if settings.env:
        sys.stdout.write(environment_report(settings.huggingface_hub_cache))
        sys.stdout.flush()

    # Imported late: --help and a wrong flag need none of the HTTP stack.
    from tokenloom_server.serve import serve

    return serve(settings, engine, router)


def _configs(flags: dict[str, Any]) -> tuple[Settings, EngineConfig, RouterConfig]:
    """The settings of all parts. Raises RefusedError."""
    try:
        settings = Settings(**flags)
        engine, router = engine_config(settings), router_config(settings)
    except ValidationError as error:
        raise RefusedError(one_line(error)) from error
    except BundledModelError as error:
        raise RefusedError(str(error)) from error
    try:
        prepare_hub(settings.huggingface_hub_cache)
    except LoadError as error:
        raise RefusedError(str(error)) from error
    return settings, engine, router


def _add_version(parser: argparse.ArgumentParser) -> None:
    text = f"tokenloom {version('tokenloom')}"
    parser.add_argument("-V", "--version", action="version", version=text)


def _refuse(prog: str, message: str) -> int:
    sys.stderr.write(f"{prog}: error: {message}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
