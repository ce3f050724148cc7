"""Server-sent events: bytes as they arrive to events."""

from dataclasses import dataclass

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Larger than any chunk of a chat; a stream without an end of line would else grow without one."""


class SseError(ValueError):
    """A stream that is not server-sent events."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event: its name (``message`` unless the stream says another) and its data."""

    name: str
    data: bytes


class SseReader:
    """Cuts a byte stream into events. Comments and the fields that no answer uses are skipped."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        """``max_event_bytes`` bounds what one event may take while it is incomplete."""
        self._limit = max_event_bytes
        self._rest = b""
        self._name = "message"
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that ``data`` completes; raises ``SseError`` for one above the limit."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            event = self._line(line.removesuffix(b"\r"))
            if event is not None:
                events.append(event)
        if self._size + len(self._rest) > self._limit:
            raise SseError(f"an event is larger than {self._limit} bytes")
        return events

    def _line(self, line: bytes) -> SseEvent | None:
        if not line:
            return self._take()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        return None

    def _take(self) -> SseEvent | None:
        event = SseEvent(self._name, b"\n".join(self._data)) if self._data else None
        self._name, self._data, self._size = "message", [], 0
        return event
