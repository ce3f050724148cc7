"""From a server configuration to a model that generates."""

import logging
import os
from math import prod

from ferrite import _native
from ferrite.api import LoadedModel, ModelLoadError, ServerConfig
from ferrite.catalogue import CatalogueError, console_report, resolve
from ferrite.chat import ChatTemplate, TemplateRefusedError
from ferrite.cli.inspect import quantisation_mix
from ferrite.engine import Engine, EngineConfig
from ferrite.gguf import FileType, GGUFError, GGUFFile, open_gguf
from ferrite.models import trace_model
from ferrite.program.runner import KvDtype, NativeRunner, RunnerConfig, RunnerConfigError, load_runner
from ferrite.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from ferrite.tokenizer.bytelevel import BYTE_ALPHABET

logger = logging.getLogger(__name__)

PREFILL_CHUNK = 128
"""Prompt rows in one step: what a running stream, or a cancelled prompt, may have to wait for.

More rows are not faster: from 64 on, a prompt of 1,024 or 2,048 tokens takes the same time.
"""

FALLBACK_STOPS = ("\n\nUser:", "\n\nAssistant:")
"""Where the fallback template would begin the next turn, which a model writes when nothing stops it."""


def load_model(config: ServerConfig) -> LoadedModel:
    """Resolve, open and load ``config.model`` and start its engine; ``config.threads`` is a number.

    Raises ``ModelLoadError``, one line that names the file or the option at fault.
    """
    try:
        return _load(config)
    except (CatalogueError, GGUFError, TokenizerError, TemplateRefusedError) as error:
        raise ModelLoadError(str(error)) from error
    except RunnerConfigError as error:
        raise ModelLoadError(f"{config.model}: {error}") from error
    except OSError as error:
        raise ModelLoadError(f"{config.model}: {error.strerror or error}") from error
    except MemoryError as error:
        raise ModelLoadError(f"{config.model}: not enough memory for the model and its KV cache") from error


def _load(config: ServerConfig) -> LoadedModel:
    with console_report() as report:
        path = resolve(os.path.expanduser(config.model or ""), offline=config.offline, report=report)
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file.metadata)
        chat_template = ChatTemplate.from_metadata(file.metadata, tokenizer)
        if chat_template.is_fallback:
            logger.warning(
                "%s has no chat template: chats are written as 'User: ...' and 'Assistant: ...'", path
            )
        runner = _runner(config, file)
        engine = Engine(
            runner,
            tokenizer.detokenizer,
            EngineConfig(
                max_concurrent=config.max_concurrent_inferences,
                inference_wait_seconds=config.inference_wait_ms / 1000,
                prefill_chunk=max(PREFILL_CHUNK, config.max_concurrent_inferences),
            ),
        )
        model = LoadedModel(
            id=config.model_id,
            engine=engine,
            tokenizer=tokenizer,
            chat_template=chat_template,
            context_length=runner.context_length,
            n_params=sum(prod(tensor.shape) for tensor in file.tensors.values()),
            quantisation=_quantisation(file),
            architecture=runner.program.architecture,
            created=int(path.stat().st_mtime),
            kernel_provider=runner.provider,
            cpu_features=tuple(_native.cpu_features()),
            longest_token=_longest_token(tokenizer),
            turn_stops=FALLBACK_STOPS if chat_template.is_fallback else (),
            memory_bound_bytes=runner.weight_bytes + runner.kv_bytes,
        )
    engine.start()
    return model


def _runner(config: ServerConfig, file: GGUFFile) -> NativeRunner:
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
    kv_dtype: KvDtype = "f32" if config.kv_dtype == "f32" else "f16"
    return load_runner(
        file,
        program,
        RunnerConfig(
            threads=config.threads or 1,
            provider=config.kernel_provider,
            residual_activations=residual,
            kv_dtype=kv_dtype,
            context_length=config.ctx_size,
            sequences=config.max_concurrent_inferences,
        ),
    )


def _longest_token(tokenizer: Tokenizer) -> int | None:
    """Return the most characters of text that one token stands for.

    A token's text has no fewer characters than what it stands for. None where a byte has no token: such
    bytes are left out, so text can vanish.
    """
    vocabulary = tokenizer.vocabulary
    complete = tokenizer.rule == "sentencepiece" or vocabulary.ids.keys() >= set(BYTE_ALPHABET.values())
    return max(map(len, vocabulary.texts)) if complete else None


def _quantisation(file: GGUFFile) -> str:
    """Return what the file calls itself, or the type that most of its bytes have."""
    declared = file.metadata.get("general.file_type")
    if isinstance(declared, int) and declared in set(FileType):
        return FileType(declared).name
    return quantisation_mix(file)[0].type
