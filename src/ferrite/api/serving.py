"""Running the application on uvicorn: start, ready, drain, exit status."""

import asyncio
import math
import socket
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

import uvicorn

from ferrite.api.app import build_app
from ferrite.api.config import ServerConfig
from ferrite.api.model import ServerState
from ferrite.api.options import Address
from ferrite.api.protocol import BoundedProtocol

_ENGINE_CHECK_SECONDS = 0.25
_KEEP_ALIVE_SECONDS = 65


def bind_listener(address: Address) -> socket.socket:
    """Take the address, without listening yet; raises ``OSError``."""
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except UnicodeError:
        raise OSError("not a host name") from None
    family, kind, protocol, _, where = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError:
        listener.close()
        raise
    return listener


def listener_address(listener: socket.socket) -> Address:
    """Return where a bound socket will listen, with the port the system chose."""
    host, port = listener.getsockname()[:2]
    return Address(host, port)


class Server(uvicorn.Server):
    """uvicorn, except that a signal drains first: it goes on answering, ``/health`` too, meanwhile."""

    def __init__(self, config: ServerConfig, state: ServerState, on_ready: Callable[[], None]) -> None:
        """``on_ready`` is called once, when connections are accepted."""
        super().__init__(
            uvicorn.Config(
                build_app(config, state),
                loop="uvloop",
                http=BoundedProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            )
        )
        self.exit_status = 0
        """Of the process, once the server has run."""
        self._state = state
        self._drain_seconds = config.drain_timeout_ms / 1000
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections and say so."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._keep(self._watch_engine())
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first signal, stop at once on the second."""
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self.begin_drain)

    def begin_drain(self) -> None:
        """Refuse new generations and stop when the running ones have ended; on the loop's thread."""
        if self._state.draining:
            self.should_exit = self.force_exit = True
        else:
            self._state.draining = True
            self._keep(self._drain())

    async def _drain(self) -> None:
        deadline = time.monotonic() + self._drain_seconds
        if self._state.model is not None:
            await self._state.model.engine.drain(self._drain_seconds)
        # What is left is written to the clients; a reader that does not read is cut off.
        self.config.timeout_graceful_shutdown = max(1, math.ceil(deadline - time.monotonic()))
        self.should_exit = True

    async def _watch_engine(self) -> None:
        while not self.should_exit:
            model = self._state.model
            if model is not None and not model.engine.healthy:
                self.exit_status = 1
                if not self._state.draining:
                    self.begin_drain()
                return
            await asyncio.sleep(_ENGINE_CHECK_SECONDS)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def serve(
    config: ServerConfig, state: ServerState, listener: socket.socket, on_ready: Callable[[], None]
) -> int:
    """Serve until a signal or a dead engine; return the exit status of the process."""
    server = Server(config, state, on_ready)
    try:
        server.run(sockets=[listener])
    finally:
        if state.model is not None:
            state.model.engine.stop()
    return server.exit_status
