"""The server's configuration: every option of ``ferrite-server``, and which combinations make sense."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from ferrite.api.options import (
    Address,
    ConfigError,
    Option,
    address,
    bearer_token,
    choice,
    flag_name,
    layered_values,
    model_identifier,
    multiple_of,
    options_of,
    origins,
    path,
    switch,
    text,
    whole_number,
)

DEFAULT_BIND = Address("127.0.0.1", 8080)
PERMIT_WAITING_LIMIT = 64
"""Requests that may wait for a permit when batching is off: no option bounds them, only their time."""
DEFAULT_PREFIX_ENTRIES = 8
DEFAULT_PREFIX_MIB = 64
DEFAULT_BLOCK_TOKENS = 16
_PREFIX_OPTIONS = ("prefix_cache_max_entries", "prefix_cache_max_mib")
_BATCH_OPTIONS = ("max_batch_streams", "max_batch_queue")
_LOCUS_OPTIONS = ("kv_tokens_per_block", "kv_max_tokens")
_COUNT = 2**31 - 1
_MILLISECONDS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What ``ferrite-server`` was told. ``None`` means that nothing was said and a rule decides."""

    bind: Annotated[Address, Option(address, "ADDR:PORT", "listen address; port 0 picks a free one")] = (
        DEFAULT_BIND
    )
    model: Annotated[
        str | None, Option(text, "PATH", "GGUF file or catalogue name; without it generation answers 503")
    ] = None
    model_id: Annotated[str, Option(model_identifier, "ID", "the exact model id requests must name")] = (
        "ferrite-local"
    )
    offline: Annotated[bool, switch("never download a catalogue model; use what the cache holds")] = False
    api_key: Annotated[
        str | None, Option(bearer_token, "KEY", "bearer token of every /v1/* and /admin/* route")
    ] = field(default=None, repr=False)
    api_key_file: Annotated[Path | None, Option(path, "FILE", "read the API key from this file")] = None
    default_max_tokens: Annotated[
        int, Option(whole_number(1, _COUNT), "N", "token budget of a request that names none")
    ] = 16
    hard_max_tokens: Annotated[
        int, Option(whole_number(1, _COUNT), "N", "largest token budget; a request above it is refused")
    ] = 256
    inference_wait_ms: Annotated[
        int | None,
        Option(
            whole_number(0, _MILLISECONDS),
            "N",
            "how long admission may wait before 429 (0; when batching: as long as it takes)",
        ),
    ] = None
    threads: Annotated[
        int | None,
        Option(
            whole_number(1, 1024), "N", "inference workers (automatic: physical cores, one left for HTTP)"
        ),
    ] = None
    kernel_provider: Annotated[
        str,
        Option(choice("auto", "portable"), "auto|portable", "fast kernels, or the plain C++ ones; same bits"),
    ] = "auto"
    max_concurrent_inferences: Annotated[
        int | None,
        Option(
            whole_number(1, 1024),
            "N",
            "admission permits when batching is off (1); --max-batch-streams is that of batching",
        ),
    ] = None
    experimental_prefix_cache: Annotated[bool, switch("reuse prompt prefixes across requests")] = False
    prefix_cache_max_entries: Annotated[
        int | None,
        Option(
            whole_number(1, _COUNT),
            "N",
            f"prefix cache entries ({DEFAULT_PREFIX_ENTRIES} when the cache is on)",
        ),
    ] = None
    prefix_cache_max_mib: Annotated[
        int | None, Option(whole_number(1, _COUNT), "N", "prefix cache size in MiB (64 when the cache is on)")
    ] = None
    experimental_residual_q8_activation_matvec: Annotated[
        bool, switch("two-term int8 activations where the CPU has int8 dot products")
    ] = False
    experimental_batched_decode: Annotated[bool, switch("continuous batching; needs --max-batch-streams")] = (
        False
    )
    max_batch_streams: Annotated[
        int | None, Option(whole_number(1, 1024), "N", "active streams when batching")
    ] = None
    max_batch_queue: Annotated[
        int | None,
        Option(whole_number(0, 65536), "N", "requests that may wait behind them (as many as the streams)"),
    ] = None
    kv_backend: Annotated[str, Option(choice("vec", "locus"), "vec|locus", "KV storage policy")] = "vec"
    kv_tokens_per_block: Annotated[
        int | None,
        Option(multiple_of(16, 4096), "N", "positions per locus block, a multiple of 16 (16 with locus)"),
    ] = None
    kv_max_tokens: Annotated[
        int | None,
        Option(whole_number(1, _COUNT), "N", "positions per session; required with locus"),
    ] = None
    kv_dtype: Annotated[
        str, Option(choice("f16", "f32", "q8_0"), "f16|f32|q8_0", "number format of the KV cache")
    ] = "f16"
    ctx_size: Annotated[
        int | None,
        Option(whole_number(1, _COUNT), "N", "context length in tokens (the model's own if not given)"),
    ] = None
    speculate: Annotated[
        str,
        Option(
            choice("off", "ngram"),
            "off|ngram",
            "draft the next tokens from what the prompt and the answer said before; same tokens, faster",
        ),
    ] = "off"
    config: Annotated[
        Path | None, Option(path, "FILE", "TOML file with these option names", in_file=False)
    ] = None
    cors_origin: Annotated[
        tuple[str, ...],
        Option(origins, "ORIGIN", "browsers of this origin may call; none by default", repeatable=True),
    ] = ()
    log_format: Annotated[str, Option(choice("text", "json"), "text|json", "format of the log on stderr")] = (
        "text"
    )
    access_log: Annotated[bool, switch("log one line per request")] = True
    max_body_bytes: Annotated[int, Option(whole_number(1, _COUNT), "N", "largest request body")] = (
        2 * 1024 * 1024
    )
    request_timeout_ms: Annotated[
        int, Option(whole_number(0, _MILLISECONDS), "N", "time limit of one request; 0 is none")
    ] = 0
    drain_timeout_ms: Annotated[
        int, Option(whole_number(0, _MILLISECONDS), "N", "how long running requests may finish at shutdown")
    ] = 30_000
    unknown_fields: Annotated[
        str, Option(choice("refuse", "ignore"), "refuse|ignore", "what to do with unknown request fields")
    ] = "refuse"

    @property
    def sessions(self) -> int:
        """Requests that may generate at one moment: batch streams, or permits."""
        if self.experimental_batched_decode:
            return self.max_batch_streams or 1
        return self.max_concurrent_inferences or 1

    @property
    def waiting_limit(self) -> int:
        """Requests that may wait behind them."""
        if not self.experimental_batched_decode:
            return PERMIT_WAITING_LIMIT
        return self.sessions if self.max_batch_queue is None else self.max_batch_queue

    @property
    def block_tokens(self) -> int:
        """Positions per KV block."""
        return self.kv_tokens_per_block or DEFAULT_BLOCK_TOKENS

    @property
    def wait_seconds(self) -> float:
        """How long a request may wait; ``math.inf`` when nothing limits it."""
        if self.inference_wait_ms is None:
            return math.inf if self.experimental_batched_decode else 0.0
        return self.inference_wait_ms / 1000


def load_config(flags: Mapping[str, object], environ: Mapping[str, str]) -> ServerConfig:
    """Build the configuration from what the command line named, the environment and ``--config``.

    The result is ready to serve with: the key file is read and the combination checked. Raises
    ``ConfigError``, whose message is one line.
    """
    config = ServerConfig(**layered_values(options_of(ServerConfig), flags, environ))
    check_combination(config)
    if config.api_key_file is not None:
        config = replace(config, api_key=_read_key(config.api_key_file))
    if config.threads is None and "OMP_NUM_THREADS" in environ:
        config = replace(config, threads=_openmp_threads(environ["OMP_NUM_THREADS"]))
    return config


def check_combination(config: ServerConfig) -> None:
    """Raise ``ConfigError`` for options that contradict each other."""
    if config.default_max_tokens > config.hard_max_tokens:
        raise ConfigError(
            f"--default-max-tokens {config.default_max_tokens} is above "
            f"--hard-max-tokens {config.hard_max_tokens}"
        )
    if config.api_key is not None and config.api_key_file is not None:
        raise ConfigError("--api-key and --api-key-file cannot be given together")
    groups = (
        ("--experimental-prefix-cache", config.experimental_prefix_cache, _PREFIX_OPTIONS),
        ("--experimental-batched-decode", config.experimental_batched_decode, _BATCH_OPTIONS),
        ("--kv-backend locus", config.kv_backend == "locus", _LOCUS_OPTIONS),
    )
    for needed, given, names in groups:
        for name in names:
            if getattr(config, name) is not None and not given:
                raise ConfigError(f"{flag_name(name)} needs {needed}")
    if config.experimental_batched_decode:
        _check_batching(config)
    if config.kv_backend == "locus" and config.kv_max_tokens is None:
        raise ConfigError("--kv-backend locus needs --kv-max-tokens")


def _check_batching(config: ServerConfig) -> None:
    if config.max_batch_streams is None:
        raise ConfigError("--experimental-batched-decode needs --max-batch-streams")
    if config.experimental_residual_q8_activation_matvec:
        raise ConfigError(
            "--experimental-residual-q8-activation-matvec cannot be combined "
            "with --experimental-batched-decode"
        )
    if config.max_concurrent_inferences is not None:
        raise ConfigError(
            "--max-concurrent-inferences cannot be combined with --experimental-batched-decode, "
            "which batches every request: --max-batch-streams says how many run at once"
        )
    if config.inference_wait_ms == 0 and config.max_batch_queue:
        raise ConfigError(
            f"--inference-wait-ms 0 lets no request wait, but --max-batch-queue {config.max_batch_queue} does"
        )


def _read_key(file: Path) -> str:
    try:
        return bearer_token(file.read_text(encoding="utf-8").rstrip("\r\n"))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(f"--api-key-file: {file}: {reason}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--api-key-file: {file}: not UTF-8 text") from None
    except ValueError as error:
        raise ConfigError(f"--api-key-file: {file}: {error}") from None


def _openmp_threads(value: str) -> int:
    # OpenMP writes nested levels as "4,2"; the outermost is the number of workers.
    try:
        return whole_number(1, 1024)(value.partition(",")[0].strip())
    except ValueError as error:
        raise ConfigError(f"OMP_NUM_THREADS: {error}") from None
