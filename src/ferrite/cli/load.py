"""From a server configuration to a model that generates."""

import hashlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Literal, cast

import numpy as np

from ferrite import _native
from ferrite.api import LoadedModel, ModelLoadError, ServerConfig
from ferrite.api.config import DEFAULT_PREFIX_ENTRIES, DEFAULT_PREFIX_MIB
from ferrite.api.memory import MemoryCeiling, resident_bytes
from ferrite.api.services import MAX_ARRIVING_BODIES
from ferrite.api.structured import CachedGrammars
from ferrite.catalogue import CatalogueError, console_report, resolve
from ferrite.chat import ChatTemplate, TemplateRefusedError
from ferrite.cli.inspect import quantisation_mix
from ferrite.engine import Engine, EngineConfig
from ferrite.gguf import FileType, GGUFError, GGUFFile, open_gguf
from ferrite.grammar import GrammarCompiler
from ferrite.kv import PrefixLimits
from ferrite.models import trace_model
from ferrite.program.ops import Program
from ferrite.program.runner import (
    KvBackend,
    KvDtype,
    NativeRunner,
    RunnerConfig,
    RunnerConfigError,
    load_runner,
)
from ferrite.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from ferrite.tokenizer.bytelevel import BYTE_ALPHABET
from ferrite.toolcalls import find_format

logger = logging.getLogger(__name__)

PREFILL_CHUNK = 128
"""Prompt rows in one step: what a running stream, or a cancelled prompt, may have to wait for.

More rows are not faster: from 64 on, a prompt of 1,024 or 2,048 tokens takes the same time.
"""

ARRIVAL_WINDOW_SECONDS = 0.005
"""How long an idle engine waits for more requests when batching: what a client cannot feel."""
IDENTITY_DIGITS = 16

FALLBACK_STOPS = ("\n\nUser:", "\n\nAssistant:")
"""Where the fallback template would begin the next turn, which a model writes when nothing stops it."""


def load_model(
    config: ServerConfig, *, on_runner: Callable[[NativeRunner], None] | None = None
) -> LoadedModel:
    """Resolve, open and load ``config.model`` and start its engine; ``config.threads`` is a number.

    ``on_runner`` is given what the engine will run, before it does.
    Raises ``ModelLoadError``, one line that names the file or the option at fault.
    """
    try:
        return _load(config, on_runner)
    except (CatalogueError, GGUFError) as error:
        raise ModelLoadError(str(error)) from error
    except (TokenizerError, TemplateRefusedError, RunnerConfigError) as error:
        raise ModelLoadError(f"{config.model}: {error}") from error
    except OSError as error:
        raise ModelLoadError(f"{config.model}: {error.strerror or error}") from error
    except MemoryError as error:
        raise ModelLoadError(f"{config.model}: not enough memory for the model and its KV cache") from error


def _load(config: ServerConfig, on_runner: Callable[[NativeRunner], None] | None) -> LoadedModel:
    with console_report() as report:
        path = resolve(os.path.expanduser(config.model or ""), offline=config.offline, report=report)
    with open_gguf(path) as file, ThreadPoolExecutor(1, "ferrite-load") as packing:
        # Packing needs no GIL, and nothing else of loading needs more than one core.
        packed = packing.submit(load_runner, file, *_program(config, file))
        tokenizer = load_tokenizer(file.metadata)
        chat_template = ChatTemplate.from_metadata(file.metadata, tokenizer)
        if chat_template.is_fallback:
            logger.warning(
                "%s has no chat template: chats are written as 'User: ...' and 'Assistant: ...'", path
            )
        answer_format = find_format(chat_template, tokenizer)
        detokenizer = partial(tokenizer.detokenizer, shown=answer_format.shown_ids)
        identity = cache_identity(config, file, tokenizer, chat_template)
        longest_token = _longest_token(tokenizer)
        # Building the grammars' vocabulary takes most of all, on top of what is held here. The pages of the
        # file are 17 MB where there are 262,144 tokens.
        file.drop_pages()
        grammar = _grammars(tokenizer)
        runner = packed.result()
        if on_runner is not None:
            on_runner(runner)
        engine = Engine(runner, detokenizer, _engine_config(config, runner, identity))
        session_positions = runner.context_length if config.kv_max_tokens is None else config.kv_max_tokens
        model = LoadedModel(
            id=config.model_id,
            engine=engine,
            tokenizer=tokenizer,
            chat_template=chat_template,
            grammar=grammar,
            answer_format=answer_format,
            detokenizer=detokenizer,
            context_length=min(runner.context_length, session_positions),
            n_params=sum(prod(tensor.shape) for tensor in file.tensors.values()),
            quantisation=_quantisation(file),
            architecture=runner.program.architecture,
            created=int(path.stat().st_mtime),
            kernel_provider=runner.provider,
            cpu_features=tuple(_native.cpu_features()),
            longest_token=longest_token,
            turn_stops=FALLBACK_STOPS if chat_template.is_fallback else (),
        )
    # Building the grammars' vocabulary leaves freed memory behind, 25 MB for 262,144 tokens.
    _native.trim_memory()
    engine.start()
    return replace(model, memory=_memory_ceiling(config, runner))


def _grammars(tokenizer: Tokenizer) -> CachedGrammars:
    compiler = GrammarCompiler(tokenizer)
    if tokenizer.end_ids:
        # Here and not with the first request, whose second of work in Python would hold up running streams.
        compiler.prepare()
    return CachedGrammars(compiler)


def _engine_config(config: ServerConfig, runner: NativeRunner, cache_identity: str) -> EngineConfig:
    batching = config.experimental_batched_decode
    return EngineConfig(
        max_concurrent=config.sessions,
        inference_wait_seconds=config.wait_seconds,
        waiting_limit=config.waiting_limit,
        arrival_window_seconds=ARRIVAL_WINDOW_SECONDS if batching else 0.0,
        prefill_chunk=PREFILL_CHUNK,
        session_positions=(
            None if config.kv_max_tokens is None else min(config.kv_max_tokens, runner.context_length)
        ),
        prefix_cache=_prefix_limits(config),
        speculation=cast("Literal['off', 'ngram']", config.speculate),
        cache_identity=cache_identity,
    )


def _prefix_limits(config: ServerConfig) -> PrefixLimits | None:
    if not config.experimental_prefix_cache:
        return None
    return PrefixLimits(
        max_entries=config.prefix_cache_max_entries or DEFAULT_PREFIX_ENTRIES,
        max_bytes=(config.prefix_cache_max_mib or DEFAULT_PREFIX_MIB) << 20,
    )


def cache_identity(
    config: ServerConfig, file: GGUFFile, tokenizer: Tokenizer, chat_template: ChatTemplate
) -> str:
    """Return a digest of all that a cached prefix depends on beside its tokens.

    The weights count by the size and time of their files: reading gigabytes again would double the time to
    start, and the files must not change while the server runs.
    """
    shards = [(status.st_size, status.st_mtime_ns) for status in map(Path.stat, file.paths)]
    tensors = [(name, info.shape, info.type.name) for name, info in file.tensors.items()]
    parts = (
        (shards, tensors),
        (tokenizer.rule, tokenizer.add_bos, tokenizer.bos_id),
        chat_template.text,
        config.experimental_residual_q8_activation_matvec,
        config.kernel_provider,
        (config.kv_backend, config.kv_dtype, config.block_tokens),
    )
    texts = tokenizer.vocabulary.texts
    digest = hashlib.sha256(texts.data)
    digest.update(texts.offsets.tobytes())
    for part in parts:
        digest.update(repr(part).encode())
    return digest.hexdigest()[:IDENTITY_DIGITS]


def _memory_ceiling(config: ServerConfig, runner: NativeRunner) -> MemoryCeiling:
    held = resident_bytes() or 0
    return MemoryCeiling(
        model_bytes=runner.weight_bytes,
        session_bytes=runner.session_bytes,
        sessions=config.sessions,
        prefix_cache_bytes=runner.kv_bytes - config.sessions * runner.session_bytes,
        server_bytes=max(held - runner.weight_bytes, 0) + MAX_ARRIVING_BODIES * config.max_body_bytes,
    )


def _program(config: ServerConfig, file: GGUFFile) -> tuple[Program, RunnerConfig]:
    """Return what is to be run, and how; raises ``ModelLoadError`` for options that do not fit the model."""
    program = trace_model(file)
    if config.ctx_size is not None and config.ctx_size > program.context_length:
        raise ModelLoadError(
            f"--ctx-size {config.ctx_size} is above the {program.context_length} positions of --model "
            f"{config.model}"
        )
    residual = config.experimental_residual_q8_activation_matvec
    if residual and _native.providers() == ["portable"]:
        raise ModelLoadError(
            "--experimental-residual-q8-activation-matvec: this CPU has no int8 dot products"
        )
    limits = _prefix_limits(config)
    return program, RunnerConfig(
        threads=config.threads or 1,
        provider=config.kernel_provider,
        residual_activations=residual,
        kv_dtype=cast("KvDtype", config.kv_dtype),
        kv_backend=cast("KvBackend", config.kv_backend),
        block_tokens=config.block_tokens,
        context_length=config.ctx_size,
        sequences=config.sessions,
        session_positions=config.kv_max_tokens,
        spare_bytes=0 if limits is None else limits.max_bytes,
    )


def _longest_token(tokenizer: Tokenizer) -> int | None:
    """Return the most characters of text that one token stands for.

    A token's text has no fewer characters than what it stands for. None where a byte has no token: such
    bytes are left out, so text can vanish.
    """
    vocabulary = tokenizer.vocabulary
    complete = tokenizer.rule == "sentencepiece" or all(
        map(vocabulary.ids.__contains__, BYTE_ALPHABET.values())
    )
    return int(np.diff(vocabulary.texts.character_offsets()).max()) if complete else None


def _quantisation(file: GGUFFile) -> str:
    """Return what the file calls itself, or the type that most of its bytes have."""
    declared = file.metadata.get("general.file_type")
    if isinstance(declared, int) and declared in set(FileType):
        return FileType(declared).name
    return quantisation_mix(file)[0].type
