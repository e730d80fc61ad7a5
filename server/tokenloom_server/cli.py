"""The command line: `tokenloom serve`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from pydantic import ValidationError

from tokenloom_server.bundled_model import BundledModelError
from tokenloom_server.configs import engine_config, router_config
from tokenloom_server.flags import add_flags
from tokenloom_server.settings import Settings
from tokenloom_server.settings_error import one_line

DESCRIPTION = "Serve a language model over HTTP, in the dialect of text-generation-inference."
EPILOG = "Each flag can be set by the environment variable in brackets instead; the flag wins."


class OneLineParser(argparse.ArgumentParser):
    """A parser whose complaints are one line on stderr and exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Say it in one line, without the usage."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = OneLineParser(prog="tokenloom", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"tokenloom {version('tokenloom')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        usage="%(prog)s [FLAGS]",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
    )
    add_flags(serve)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    flags = vars(make_parser().parse_args(arguments))
    prog = f"tokenloom {flags.pop('command')}"
    try:
        settings = Settings(**flags)
        engine, router = engine_config(settings), router_config(settings)
    except ValidationError as error:
        return _refuse(prog, one_line(error))
    except BundledModelError as error:
        return _refuse(prog, str(error))

    # Imported late: --help and a wrong flag need none of the HTTP stack.
    from tokenloom_server.serve import serve

    return serve(settings, engine, router)


def _refuse(prog: str, message: str) -> int:
    sys.stderr.write(f"{prog}: error: {message}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
