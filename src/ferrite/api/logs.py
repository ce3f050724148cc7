"""The log on stderr, as text or as JSON lines. Callers never put prompt or generated text into it."""

import logging
import sys
import traceback
from datetime import UTC, datetime

import msgspec


class TextFormatter(logging.Formatter):
    """``time LEVEL message key=value …``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback behind it."""
        pairs = [f"{key}={value}" for key, value in _fields(record).items()]
        line = " ".join([_time(record), record.levelname, record.getMessage(), *pairs])
        return f"{line}\n{_traceback(record.exc_info[1])}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        row: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            row["traceback"] = _traceback(record.exc_info[1])
        return msgspec.json.encode(row, enc_hook=str).decode()


def set_up_logging(log_format: str) -> None:
    """Send the log of the whole process to stderr in ``log_format`` (``text`` or ``json``)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("ferrite").setLevel(logging.INFO)


def _traceback(error: BaseException | None) -> str:
    """Return where an exception and its causes came from, without messages: they may quote a prompt."""
    blocks = []
    while error is not None:
        frames = traceback.format_list(traceback.extract_tb(error.__traceback__))
        blocks.append("".join(frames) + type(error).__qualname__)
        error = error.__cause__ or error.__context__
    return "\ncaused by\n".join(blocks)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, "fields", {})
    return fields


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
