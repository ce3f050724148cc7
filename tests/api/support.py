"""A server on a real socket: the real engine on a scripted runner, one token per byte of text."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import httpx
import openai

from ferrite.api import Address, LoadedModel, ServerConfig, ServerState
from ferrite.api.memory import MemoryCeiling
from ferrite.api.serving import Server, bind_listener, listener_address
from ferrite.api.structured import CachedGrammars
from ferrite.chat import ChatTemplateError, Message
from ferrite.chat.template_options import option_problem
from ferrite.engine import Engine, EngineConfig
from ferrite.gguf import PackedBytes
from ferrite.grammar import GrammarCompiler
from ferrite.kv import PrefixLimits
from ferrite.program.step import StepBatch
from ferrite.tokenizer import Tokenizer
from ferrite.toolcalls import AnswerFormat
from ferrite.toolcalls.families import GENERIC
from tests.engine.fakes import ByteDetokenizer, FakeRunner

MODEL_ID = "maker/tiny-model"
END = 3
WAIT_SECONDS = 20.0
"""How long a test waits for what must happen; reached only when it fails."""


class ByteTokenizer:
    """UTF-8 bytes; byte 3 ends a generation and, written as ``<end>``, is a control token."""

    vocab_size = 256
    end_ids = frozenset({END})
    control_ids = (END,)

    @property
    def pieces(self) -> PackedBytes:
        return PackedBytes.of(map(self.token_bytes, range(self.vocab_size)))

    def encode(self, text: str, *, parse_special: bool, add_bos: bool) -> list[int]:
        assert parse_special
        assert add_bos
        return list(text.replace("<end>", chr(END)).encode())

    def encode_segments(self, segments: Sequence[str | int], *, add_bos: bool) -> list[int]:
        assert add_bos
        ids: list[int] = []
        for segment in segments:
            ids += [segment] if isinstance(segment, int) else segment.encode()
        return ids

    def is_control(self, token: int) -> bool:
        return token in self.end_ids

    def token_bytes(self, token: int) -> bytes:
        return b"<end>" if token == END else b"<%d>" % token if token > 255 else bytes([token])


@dataclass
class Conversations:
    """Renders ``role:content`` and remembers what it was given."""

    seen: list[list[Message]] = field(default_factory=list)
    tools: list[list[Mapping[str, Any]] | None] = field(default_factory=list)
    options: list[Mapping[str, object]] = field(default_factory=list)
    reads: frozenset[str] = frozenset()
    """Template options that have an effect."""
    ending: str = ""
    """Of each prompt."""
    held: threading.Event = field(default_factory=threading.Event)
    """Set to let the rendering of a message that begins with ``hold`` go on."""

    def option_problem(self, options: Mapping[str, object]) -> tuple[str, str] | None:
        return option_problem(options, self.reads)

    def render_prompt(
        self,
        messages: Sequence[Message],
        *,
        now: datetime,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, object] | None = None,
        tools_as_text: bool = False,
    ) -> list[str | int]:
        assert now.tzinfo is not None
        self.seen.append(list(messages))
        self.tools.append(None if tools is None else list(tools))
        self.options.append(options or {})
        if any(message.content == "refuse me" for message in messages):
            raise ChatTemplateError("Conversation roles must alternate")
        if any((message.content or "").startswith("hold") for message in messages):
            assert self.held.wait(WAIT_SECONDS)
        if any(message.content == "break" for message in messages):
            raise KeyError("a text to be kept secret")
        return [*(f"{message.role}:{message.content};" for message in messages), self.ending]


class Script:
    """What the runner samples: the bytes of ``text``, then the end token, whatever the prompt is."""

    def __init__(self, text: str, *, endless: bool = False) -> None:
        self.tokens: list[int] = [*text.encode(), *([] if endless else [END])]

    def runner(self, **changes: Any) -> FakeRunner:
        runner = FakeRunner(**{"n_blocks": 4096, **changes})

        def sample(history: tuple[int, ...]) -> int:
            prompts = [s.prompt for s in runner.samplers if history[: len(s.prompt)] == s.prompt]
            generated = len(history) - max(map(len, prompts))
            return self.tokens[generated % len(self.tokens)]

        runner.sample = sample
        return runner


@dataclass
class Running:
    """A server that answers."""

    address: Address
    engine: Engine
    runner: FakeRunner
    state: ServerState
    conversations: Conversations
    server: Server
    api_key: str | None

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=WAIT_SECONDS, trust_env=False, verify=False
        )

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=self.api_key or "none",
            max_retries=0,
            http_client=openai.DefaultHttpxClient(trust_env=False, timeout=WAIT_SECONDS, verify=False),
        )


@contextmanager
def running_server(
    runner: FakeRunner | None = None,
    *,
    engine: EngineConfig | None = None,
    load: bool = True,
    longest_token: int | None = None,
    turn_stops: tuple[str, ...] = (),
    send_buffer: int | None = None,
    memory: MemoryCeiling | None = None,
    answer_format: AnswerFormat = AnswerFormat(GENERIC, None),  # noqa: B008  immutable
    **options: Any,
) -> Iterator[Running]:
    """Serve on a free port until the block ends; ``send_buffer``: bytes the system keeps for a connection."""
    config = ServerConfig(**{"bind": Address("127.0.0.1", 0), "model_id": MODEL_ID, **options})
    runner = runner or Script("Hello, wörld! 🦀").runner(context_length=512)
    made = Engine(runner, ByteDetokenizer, engine or EngineConfig(inference_wait_seconds=WAIT_SECONDS))
    conversations, tokenizer = Conversations(), ByteTokenizer()
    model = LoadedModel(
        id=config.model_id,
        engine=made,
        tokenizer=tokenizer,
        chat_template=conversations,
        grammar=CachedGrammars(GrammarCompiler(cast("Tokenizer", tokenizer))),
        answer_format=answer_format,
        detokenizer=ByteDetokenizer,
        context_length=runner.context_length,
        n_params=1234,
        quantisation="Q4_1",
        architecture="llama",
        created=1_700_000_000,
        kernel_provider="portable",
        cpu_features=("avx2",),
        longest_token=longest_token,
        turn_stops=turn_stops,
        memory=memory,
    )
    state = ServerState(model if load else None)
    listener = bind_listener(config.bind)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    ready = threading.Event()
    server = Server(config, state, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    made.start()
    thread.start()
    try:
        assert ready.wait(WAIT_SECONDS)
        yield Running(listener_address(listener), made, runner, state, conversations, server, config.api_key)
    finally:
        conversations.held.set()
        made.stop()
        server.config.timeout_graceful_shutdown = 1
        server.should_exit = True
        thread.join(WAIT_SECONDS)
        listener.close()
        assert not thread.is_alive()


class Gate:
    """Holds the runner before its steps; a step passes when somebody lets it."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self._passes = threading.Semaphore(0)
        self._open = threading.Event()

    def __call__(self, _: StepBatch) -> None:
        self.reached.release()
        while not self._open.is_set() and not self._passes.acquire(timeout=0.02):
            pass

    def wait_until_reached(self) -> None:
        assert self.reached.acquire(timeout=WAIT_SECONDS)

    def pass_one(self) -> None:
        self._passes.release()

    def open(self) -> None:
        self._open.set()


@contextmanager
def gated_server(**options: Any) -> Iterator[tuple[Running, Gate]]:
    gate = Gate()
    runner = Script("z", endless=True).runner()
    runner.before_step = gate
    with running_server(runner, hard_max_tokens=400, **options) as running:
        try:
            yield running, gate
        finally:
            gate.open()


def batching(streams: int, queue: int, **engine: Any) -> dict[str, Any]:
    """Options of ``gated_server`` and ``running_server`` for ``BATCH(streams, queue)``."""
    return {
        "experimental_batched_decode": True,
        "max_batch_streams": streams,
        "max_batch_queue": queue,
        "engine": EngineConfig(
            max_concurrent=streams, waiting_limit=queue, inference_wait_seconds=math.inf, **engine
        ),
    }


def prefix_cache(max_entries: int = 8, max_mib: int = 64, **engine: Any) -> dict[str, Any]:
    """Options for ``--experimental-prefix-cache``."""
    limits = PrefixLimits(max_entries=max_entries, max_bytes=max_mib << 20)
    return {
        "experimental_prefix_cache": True,
        "prefix_cache_max_entries": max_entries,
        "prefix_cache_max_mib": max_mib,
        "engine": EngineConfig(
            inference_wait_seconds=WAIT_SECONDS, prefix_cache=limits, cache_identity="0123abcd", **engine
        ),
    }


def send_raw(running: Running, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a request and return its connection, which the caller closes: at once, if it leaves."""
    data = json.dumps(body).encode()
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    )
    connection = socket.create_connection((running.address.host, running.address.port), WAIT_SECONDS)
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    return connection


def receive_until(connection: socket.socket, mark: bytes, count: int = 1) -> bytes:
    """Read until ``mark`` has come ``count`` times."""
    data = b""
    while data.count(mark) < count:
        piece = connection.recv(65536)
        assert piece, "the connection closed early"
        data += piece
    return data


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a state that another thread brings about."""
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("the expected state did not come")


def chat_body(content: Any = "Hi", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL_ID, "messages": [{"role": "user", "content": content}], **fields}


def completion_body(prompt: Any = "Hi", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL_ID, "prompt": prompt, **fields}


@dataclass
class ServerProcess:
    pid: int
    ready: dict[str, Any]
    log: str = ""

    @property
    def url(self) -> str:
        return f"http://{self.ready['address']}"


@contextmanager
def server_process(
    code: str, *arguments: str, stop: signal.Signals = signal.SIGTERM
) -> Iterator[ServerProcess]:
    """Run ``code`` as a server in its own process; stop it behind the block and check its clean end."""
    # A file, since a pipe that nobody reads would stop the server once it is full.
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [sys.executable, "-c", code, "--bind", "127.0.0.1:0", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            server = ServerProcess(process.pid, json.loads(process.stdout.readline()))
            yield server
            process.send_signal(stop)
            out, _ = process.communicate(timeout=WAIT_SECONDS)
            log.seek(0)
            server.log = log.read()
            assert (out, process.returncode) == ("", 0)
        finally:
            process.kill()
