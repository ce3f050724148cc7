"""The command line that both tools share: errors as one line, and the options that name the server."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn
from urllib.parse import urlsplit

from ferrite.operations.client import Target

API_KEY_VARIABLE = "FERRITE_API_KEY"
DEFAULT_BASE_URL = "http://127.0.0.1:8080"
MAX_TIMEOUT_SECONDS = 86_400.0


class UsageError(ValueError):
    """A command line that makes no sense; the message is one line that names the option."""


class ToolParser(argparse.ArgumentParser):
    """An argument parser that raises its errors, and never guesses at an abbreviation."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        self.add_argument("-V", "--version", action="store_true", help="show the version and exit")

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError``."""
        raise UsageError(message)


def add_server_options(parser: argparse.ArgumentParser, *, timeout_seconds: float) -> None:
    """Add the options that say which server, which model and how patient."""
    parser.add_argument(
        "--base-url",
        metavar="URL",
        type=base_url,
        default=DEFAULT_BASE_URL,
        help="the server (default: %(default)s)",
    )
    parser.add_argument(
        "--model-id",
        metavar="ID",
        type=text,
        help="model to name in requests (default: the one the server has)",
    )
    parser.add_argument(
        "--api-key", metavar="KEY", type=api_key, help=f"bearer token (default: ${API_KEY_VARIABLE})"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=timeout_seconds,
        help="time limit of one request (default: %(default)s)",
    )


def target_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Target:
    """Return the server that was named; the key's flag beats the environment."""
    key: str | None = arguments.api_key
    if key is None and environ.get(API_KEY_VARIABLE):
        try:
            key = api_key(environ[API_KEY_VARIABLE])
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{API_KEY_VARIABLE}: {error}") from None
    return Target(arguments.base_url, key, arguments.timeout)


def count(low: int, high: int) -> Callable[[str], int]:
    """Read a whole number between the limits, both included."""

    def read(written: str) -> int:
        digits = written.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
            raise argparse.ArgumentTypeError(f"{written[:32]!r} is not a whole number")
        if not low <= int(written) <= high:
            raise argparse.ArgumentTypeError(f"{written} is not between {low} and {high}")
        return int(written)

    return read


def seconds(written: str) -> float:
    """Read a positive number of seconds, at most a day."""
    return number(0.001, MAX_TIMEOUT_SECONDS)(written)


def number(low: float, high: float) -> Callable[[str], float]:
    """Read a number between the limits, both included."""

    def read(written: str) -> float:
        try:
            value = float(written)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{written[:32]!r} is not a number") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{written} is not between {low:g} and {high:g}")
        return value

    return read


def text(written: str) -> str:
    """Read text that is not empty and that JSON can carry."""
    if not written:
        raise argparse.ArgumentTypeError("is empty")
    if any("\ud800" <= character <= "\udfff" for character in written):
        raise argparse.ArgumentTypeError("is not UTF-8 text")
    return written


def base_url(written: str) -> str:
    """Read ``http://host[:port]``; a slash or ``/v1`` at the end is dropped, as clients often add it."""
    try:
        parts = urlsplit(written)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username is not None:
        raise argparse.ArgumentTypeError(f"{written[:200]!r} is not an http:// or https:// address")
    return written.rstrip("/").removesuffix("/v1")


def api_key(written: str) -> str:
    """Read a bearer token."""
    if not written or not all("!" <= character <= "~" for character in written):
        raise argparse.ArgumentTypeError("the key may only have visible ASCII characters")
    return written


def is_local(url: str) -> bool:
    """Return whether a server at ``url`` runs on this machine, as far as its name tells."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def run_program(run: Callable[[Sequence[str], Mapping[str, str]], int]) -> NoReturn:
    """Run a tool with the process's arguments and environment, and exit with its status."""
    try:
        status = run(sys.argv[1:], os.environ)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        # The reader of our output has gone; what is still buffered must not fail once more at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    raise SystemExit(status)
