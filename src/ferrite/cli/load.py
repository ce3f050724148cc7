"""From a server configuration to a model that generates."""

import os
from math import prod

from ferrite import _native
from ferrite.api import LoadedModel, ModelLoadError, ServerConfig
from ferrite.catalogue import CatalogueError, console_report, resolve
from ferrite.chat import ChatTemplate, TemplateRefusedError
from ferrite.engine import Engine, EngineConfig
from ferrite.gguf import FileType, GGUFError, GGUFFile, open_gguf
from ferrite.models import trace_model
from ferrite.program.runner import KvDtype, NativeRunner, RunnerConfig, load_runner
from ferrite.tokenizer import TokenizerError, load_tokenizer

PREFILL_CHUNK = 512
"""Prompt rows in one step, and what a running stream may have to wait for."""


def load_model(config: ServerConfig) -> LoadedModel:
    """Resolve, open and load ``config.model`` and start its engine; ``config.threads`` is a number.

    Raises ``ModelLoadError``, one line that names the file or the option at fault.
    """
    try:
        return _load(config)
    except (CatalogueError, GGUFError, TokenizerError, TemplateRefusedError) as error:
        raise ModelLoadError(str(error)) from error
    except MemoryError as error:
        raise ModelLoadError(f"{config.model}: not enough memory for the model and its KV cache") from error


def _load(config: ServerConfig) -> LoadedModel:
    with console_report() as report:
        path = resolve(os.path.expanduser(config.model or ""), offline=config.offline, report=report)
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file.metadata)
        chat_template = ChatTemplate.from_metadata(file.metadata, tokenizer)
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
    kv_dtype: KvDtype = "f32" if config.kv_dtype == "f32" else "f16"
    return load_runner(
        file,
        program,
        RunnerConfig(
            threads=config.threads or 1,
            provider=config.kernel_provider,
            kv_dtype=kv_dtype,
            context_length=config.ctx_size,
            sequences=config.max_concurrent_inferences,
        ),
    )


def _quantisation(file: GGUFFile) -> str:
    """Return what the file calls itself, or the type that most of its bytes have."""
    declared = file.metadata.get("general.file_type")
    if isinstance(declared, int) and declared in set(FileType):
        return FileType(declared).name
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.n_bytes
    return max(sizes, key=lambda name: sizes[name])
