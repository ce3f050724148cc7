"""Server options as one table: how a value is read, and from where (flag, environment, file, default)."""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

ENVIRONMENT_PREFIX = "FERRITE_"
"""An option ``--some-name`` is ``FERRITE_SOME_NAME`` in the environment."""


class ConfigError(ValueError):
    """A server configuration that cannot start; the message is one line that names the options."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. ``host`` has no brackets, also for IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Option:
    """How one field of the configuration is written by its user.

    ``parse`` takes text (a flag or the environment) or a TOML value and raises ``ValueError`` with a
    message that completes "OPTION: …".
    """

    parse: Callable[[object], object]
    metavar: str
    help: str
    is_switch: bool = False
    repeatable: bool = False
    in_file: bool = True


def switch(help: str) -> Option:  # noqa: A002 - the word every command-line library uses
    """Describe an option that is on or off."""
    return Option(boolean, "", help, is_switch=True)


def flag_name(field: str) -> str:
    """``default_max_tokens`` → ``--default-max-tokens``."""
    return "--" + field.replace("_", "-")


def whole_number(low: int, high: int) -> Callable[[object], int]:
    """Read an integer between the limits, both included."""

    def parse(value: object) -> int:
        number = value
        if isinstance(value, str):
            digits = value.removeprefix("-")
            if not (digits.isascii() and digits.isdigit()):
                raise ValueError(f"{value!r} is not a whole number")
            if len(digits.lstrip("0")) > len(str(high)):
                # Also because int() refuses to read very long text.
                raise ValueError(f"{value[:32]} is not between {low} and {high}")
            number = int(value)
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"{value!r} is not a whole number")
        if not low <= number <= high:
            raise ValueError(f"{value} is not between {low} and {high}")
        return number

    return parse


def multiple_of(step: int, high: int) -> Callable[[object], int]:
    """Read a multiple of ``step`` between it and ``high``, both included."""
    number = whole_number(step, high)

    def parse(value: object) -> int:
        read = number(value)
        if read % step:
            raise ValueError(f"{value} is not a multiple of {step}")
        return read

    return parse


def choice(*values: str) -> Callable[[object], str]:
    """Read one of the given words."""

    def parse(value: object) -> str:
        if value not in values:
            raise ValueError(f"{value!r} is not one of {', '.join(values)}")
        return str(value)

    return parse


def text(value: object) -> str:
    """Read printable text that is not empty."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    if not value.strip():
        raise ValueError("is empty")
    if not value.isprintable():
        raise ValueError(f"{value!r} has characters that cannot be printed")
    return value


def model_identifier(value: object) -> str:
    """Read the model id that requests name: printable, without spaces at its ends."""
    identifier = text(value)
    if identifier != identifier.strip():
        raise ValueError(f"{value!r} begins or ends with a space")
    return identifier


def bearer_token(value: object) -> str:
    """Read an API key: what an ``Authorization: Bearer`` header can carry."""
    if not isinstance(value, str):
        raise ValueError("the key is not text")
    if not value:
        raise ValueError("the key is empty")
    if not all("!" <= character <= "~" for character in value):
        raise ValueError("the key may only have visible ASCII characters and no spaces")
    return value


def path(value: object) -> Path:
    """Read a file path; ``~`` is the home directory, where there is one."""
    return Path(os.path.expanduser(text(value)))


def boolean(value: object) -> bool:
    """Read a yes or no."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if value.lower() in {"1", "true", "yes", "on"}:
            return True
        if value.lower() in {"0", "false", "no", "off"}:
            return False
    raise ValueError(f"{value!r} is not true or false")


def address(value: object) -> Address:
    """Read ``ADDR:PORT``; an IPv6 address stands in brackets."""
    written = text(value)
    host, colon, port = written.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise ValueError(f"{written!r} is not ADDR:PORT (an IPv6 address needs brackets: [::1]:8080)")
    return Address(host[1:-1] if bracketed else host, whole_number(0, 65535)(port))


def origins(value: object) -> tuple[str, ...]:
    """Read CORS origins: ``scheme://host[:port]`` each, or ``*``."""
    written = value.split() if isinstance(value, str) else value
    if not isinstance(written, list | tuple):
        raise ValueError(f"{value!r} is not an origin or a list of origins")
    for origin in written:
        scheme, separator, host = str(origin).partition("://")
        if origin != "*" and not (
            isinstance(origin, str) and scheme and separator and host and "/" not in host
        ):
            raise ValueError(f"{origin!r} is not an origin (scheme://host, scheme://host:port or *)")
    return tuple(written)


def options_of(config_type: type) -> dict[str, Option]:
    """Return the options of a configuration dataclass, by field name, in order."""
    hints = get_type_hints(config_type, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def layered_values(
    options: Mapping[str, Option], flags: Mapping[str, object], environ: Mapping[str, str]
) -> dict[str, Any]:
    """Read every value that was set anywhere: flag, then environment, then ``--config`` file.

    ``flags`` holds only what the command line named. Raises ``ConfigError``.
    """
    values: dict[str, Any] = {}
    written = {name: (raw, source) for name in options for raw, source in _written(name, flags, environ)}
    config_file = written.get("config")
    if config_file is not None:
        raw_path, source = config_file
        file = Path(_parsed(options["config"], raw_path, source))
        for key, raw in _read_toml(file, options).items():
            written.setdefault(key.replace("-", "_"), (raw, f"{file}: {key}"))
    for name, (raw, source) in written.items():
        values[name] = _parsed(options[name], raw, source)
    return values


def _written(name: str, flags: Mapping[str, object], environ: Mapping[str, str]) -> list[tuple[object, str]]:
    variable = ENVIRONMENT_PREFIX + name.upper()
    if name in flags:
        return [(flags[name], flag_name(name))]
    if variable in environ:
        return [(environ[variable], variable)]
    return []


def _parsed(spec: Option, raw: object, source: str) -> Any:
    try:
        return spec.parse(raw)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None


def _read_toml(file: Path, options: Mapping[str, Option]) -> dict[str, object]:
    # Imported here: most servers start without a file.
    import tomllib

    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise ConfigError(f"--config: {file}: {reason}") from None
    known = [name.replace("_", "-") for name, spec in options.items() if spec.in_file]
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ConfigError(f"--config: {file}: unknown key {key!r}{hint}")
    return table
