"""``ferrite-server``: reads the options, loads the model, serves."""

import argparse
import gc
import ipaddress
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from importlib.metadata import version
from typing import NoReturn

import msgspec

from ferrite.api import (
    Address,
    ConfigError,
    LoadedModel,
    ModelLoadError,
    ServerConfig,
    ServerState,
    load_config,
)
from ferrite.api.logs import set_up_logging
from ferrite.api.options import Option, flag_name, options_of
from ferrite.api.serving import bind_listener, listener_address, serve
from ferrite.api.stats import MemoryAnswer, memory_answer
from ferrite.api.threads import automatic_threads

logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter from another; the engine thread needs it between two steps.

Python's default is ten times as long. With HTTP requests that keep both cores busy, the mean gap between two
tokens of a stream fell from 91 to 64 ms (SmolLM2 135M, three runs each).
"""

PROGRAM = "ferrite-server"
USAGE_ERROR = 2


class ReadyLine(msgspec.Struct, tag_field="event", tag="ferrite.server.ready"):
    """What a supervisor reads from stdout."""

    address: str
    pid: int
    model: str
    load_seconds: float | None
    """Null without a model."""
    kernel_provider: str
    cpu_features: tuple[str, ...] | None
    """Null without a model: nothing has looked."""
    threads: int
    kv_policy: str
    kv_dtype: str
    kv_tokens_per_block: int | None
    """Null with ``vec``, where it is no policy."""
    kv_max_tokens: int | None
    """Null with ``vec``: the context limits a session."""
    memory: MemoryAnswer | None
    """The most memory that the server can take; null without a model."""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are raised, to be one line like all others."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every option; values stay text, and only what was named is set."""
    parser = _Parser(
        prog=PROGRAM,
        description="Serve one GGUF model through a local OpenAI-compatible HTTP API.",
        epilog="Every option can also come from FERRITE_<OPTION> in the environment or from --config FILE.",
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="store_true", help="show the version and exit")
    defaults = {field.name: field.default for field in fields(ServerConfig)}
    for name, option in options_of(ServerConfig).items():
        _add_option(parser, name, option, defaults[name])
    return parser


def _add_option(parser: argparse.ArgumentParser, name: str, option: Option, default: object) -> None:
    shown = ("on" if default else "off") if option.is_switch else default
    text = option.help if default in (None, ()) else f"{option.help} (default: {shown})"
    if option.is_switch:
        parser.add_argument(
            flag_name(name), action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
        )
    else:
        parser.add_argument(
            flag_name(name),
            action="append" if option.repeatable else "store",
            metavar=option.metavar,
            default=argparse.SUPPRESS,
            help=text,
        )


def run(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    load_model: Callable[[ServerConfig], LoadedModel],
) -> int:
    """Run the server to its end and return the exit status: 2 for wrong options, 1 for what fails later."""
    try:
        flags = vars(build_parser().parse_args(arguments))
        if flags["version"]:
            sys.stdout.write(f"{PROGRAM} {version('ferrite-server')}\n")
            return 0
        config = load_config(flags, environ)
    except ConfigError as error:
        return _fail(str(error), USAGE_ERROR)
    config = replace(config, threads=config.threads or automatic_threads())
    set_up_logging(config.log_format)
    try:
        listener = bind_listener(config.bind)
    except OSError as error:
        return _fail(f"--bind {config.bind}: {error.strerror or error}", 1)
    with listener:
        _warn_of_exposure(listener_address(listener), config)
        started = time.monotonic()
        try:
            model = load_model(config) if config.model is not None else None
        except ModelLoadError as error:
            return _fail(str(error), 1)
        load_seconds = None if model is None else round(time.monotonic() - started, 3)
        if model is not None and model.memory is not None:
            logger.info("memory ceiling %s", model.memory)
        ready = ReadyLine(
            address=str(listener_address(listener)),
            pid=os.getpid(),
            model=config.model_id,
            load_seconds=load_seconds,
            kernel_provider=config.kernel_provider if model is None else model.kernel_provider,
            cpu_features=None if model is None else model.cpu_features,
            threads=config.threads or 1,
            kv_policy=config.kv_backend,
            kv_dtype=config.kv_dtype,
            kv_tokens_per_block=config.block_tokens if config.kv_backend == "locus" else None,
            kv_max_tokens=config.kv_max_tokens,
            memory=None if model is None else memory_answer(model.memory),
        )
        _resume_collection()
        return serve(config, ServerState(model), listener, lambda: _announce(ready))


def _resume_collection() -> None:
    """End the rest that ``ferrite.cli.start`` gave the garbage collector, and keep it from what is there now.

    That stays, and a collection that walked it would hold up every stream for some 50 ms.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def main() -> NoReturn:
    """Run the command."""
    from ferrite.cli.load import load_model

    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        status = run(sys.argv[1:], os.environ, load_model)
    except KeyboardInterrupt:
        status = 130
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own end would wait for a thread that still tokenizes an abandoned prompt.
    os._exit(status)


def _warn_of_exposure(address: Address, config: ServerConfig) -> None:
    if config.api_key is None and not ipaddress.ip_address(address.host).is_loopback:
        logger.warning("--bind %s lets other machines in, and there is no --api-key", address)


def _announce(ready: ReadyLine) -> None:
    sys.stdout.write(msgspec.json.encode(ready).decode() + "\n")
    sys.stdout.flush()


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"{PROGRAM}: {message}\n")
    return status
