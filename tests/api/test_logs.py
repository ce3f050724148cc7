"""The log: one line a record, and nothing of a prompt in a traceback."""

import json
import logging
import sys

from ferrite.api.logs import JsonFormatter, TextFormatter


def record_of_a_fault() -> logging.LogRecord:
    prompt = "".join(["se", "cret"])
    try:
        try:
            raise KeyError(prompt)
        except KeyError as error:
            raise RuntimeError(prompt) from error
    except RuntimeError:
        fault = sys.exc_info()
    return logging.LogRecord("ferrite.api", logging.ERROR, __file__, 1, "broken %s", ("here",), fault)


def request_record() -> logging.LogRecord:
    record = logging.LogRecord("ferrite.api", logging.INFO, __file__, 1, "request", (), None)
    record.__dict__["fields"] = {"path": "/health", "status": 200}
    record.created = 0.0
    return record


def test_a_text_line() -> None:
    line = TextFormatter().format(request_record())
    assert line == "1970-01-01T00:00:00.000+00:00 INFO request path=/health status=200"


def test_a_json_line() -> None:
    assert json.loads(JsonFormatter().format(request_record())) == {
        "time": "1970-01-01T00:00:00.000+00:00",
        "level": "info",
        "logger": "ferrite.api",
        "message": "request",
        "path": "/health",
        "status": 200,
    }


def test_a_traceback_shows_places_and_types_but_no_messages() -> None:
    text = TextFormatter().format(record_of_a_fault())
    row = json.loads(JsonFormatter().format(record_of_a_fault()))
    for shown in (text, row["traceback"]):
        assert "RuntimeError" in shown
        assert "KeyError" in shown
        assert "record_of_a_fault" in shown
        assert "secret" not in shown
    assert row["message"] == "broken here"
