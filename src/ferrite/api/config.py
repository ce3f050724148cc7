"""The server's configuration: every option of ``ferrite-server``, and which combinations make sense."""

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
    options_of,
    origins,
    path,
    switch,
    text,
    whole_number,
)

DEFAULT_BIND = Address("127.0.0.1", 8080)
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
        int, Option(whole_number(0, _MILLISECONDS), "N", "how long admission may wait before 429")
    ] = 0
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
        int, Option(whole_number(1, 1024), "N", "admission permits when batching is off")
    ] = 1
    experimental_prefix_cache: Annotated[bool, switch("reuse prompt prefixes across requests")] = False
    prefix_cache_max_entries: Annotated[
        int | None, Option(whole_number(1, _COUNT), "N", "prefix cache entries (8 when the cache is on)")
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
        int | None, Option(whole_number(1, 4096), "N", "positions per locus block (16 with locus)")
    ] = None
    kv_max_tokens: Annotated[
        int | None, Option(whole_number(1, _COUNT), "N", "positions per session; required with locus")
    ] = None
    kv_dtype: Annotated[
        str, Option(choice("f16", "f32", "q8_0"), "f16|f32|q8_0", "number format of the KV cache")
    ] = "f16"
    ctx_size: Annotated[
        int | None,
        Option(whole_number(1, _COUNT), "N", "context length in tokens (the model's own if not given)"),
    ] = None
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
    """Raise ``ConfigError`` for options that contradict each other or are not built yet."""
    if config.default_max_tokens > config.hard_max_tokens:
        raise ConfigError(
            f"--default-max-tokens {config.default_max_tokens} is above "
            f"--hard-max-tokens {config.hard_max_tokens}"
        )
    if config.api_key is not None and config.api_key_file is not None:
        raise ConfigError("--api-key and --api-key-file cannot be given together")
    for name in ("prefix_cache_max_entries", "prefix_cache_max_mib"):
        if getattr(config, name) is not None and not config.experimental_prefix_cache:
            raise ConfigError(f"{flag_name(name)} needs --experimental-prefix-cache")
    for name in ("max_batch_streams", "max_batch_queue"):
        if getattr(config, name) is not None and not config.experimental_batched_decode:
            raise ConfigError(f"{flag_name(name)} needs --experimental-batched-decode")
    if config.experimental_batched_decode and config.max_batch_streams is None:
        raise ConfigError("--experimental-batched-decode needs --max-batch-streams")
    if config.experimental_batched_decode and config.experimental_residual_q8_activation_matvec:
        raise ConfigError(
            "--experimental-residual-q8-activation-matvec cannot be combined "
            "with --experimental-batched-decode"
        )
    for name in ("kv_tokens_per_block", "kv_max_tokens"):
        if getattr(config, name) is not None and config.kv_backend != "locus":
            raise ConfigError(f"{flag_name(name)} needs --kv-backend locus")
    if config.kv_backend == "locus" and config.kv_max_tokens is None:
        raise ConfigError("--kv-backend locus needs --kv-max-tokens")
    _refuse_unbuilt(config)


def _refuse_unbuilt(config: ServerConfig) -> None:
    unbuilt = {
        "--experimental-prefix-cache": config.experimental_prefix_cache,
        "--experimental-batched-decode": config.experimental_batched_decode,
        "--kv-backend locus": config.kv_backend == "locus",
        "--kv-dtype q8_0": config.kv_dtype == "q8_0",
    }
    for written, asked in unbuilt.items():
        if asked:
            raise ConfigError(f"{written} is not supported by this version yet")


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
