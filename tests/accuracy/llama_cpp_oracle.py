"""llama.cpp as an outside oracle, through llama-cpp-python (needed by the recipe only, not by tests)."""

import ctypes
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.reference.weights import Float32


@dataclass(frozen=True, slots=True)
class Settings:
    """What changes llama.cpp's arithmetic. The defaults are those of its own tools."""

    ubatch: int = 512
    """Tokens per evaluation: above 1 the batched kernels run."""
    flash_attention: str = "auto"
    """``auto`` (its default), ``on`` or ``off``."""
    kv_dtype: str = "f16"
    """``f16`` (its default) or ``f32``."""


class LlamaCpp:
    """One loaded model on one thread."""

    def __init__(self, path: Path) -> None:
        self._api: Any = importlib.import_module("llama_cpp")
        self._silence = self._api.llama_log_callback(lambda *_: None)
        self._api.llama_log_set(self._silence, ctypes.c_void_p(0))
        self._api.llama_backend_init()
        params = self._api.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = self._api.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ValueError(f"{path.name}: llama.cpp cannot load it")
        self._vocab = self._api.llama_model_get_vocab(self._model)

    @property
    def version(self) -> str:
        """Version of llama-cpp-python, which pins llama.cpp's."""
        return str(self._api.__version__)

    def tokenize(self, text: bytes) -> list[int]:
        """Ids of plain text, with the BOS the model asks for; control-token text stays text."""
        ids = (ctypes.c_int32 * (len(text) + 8))()
        n = self._api.llama_tokenize(self._vocab, text, len(text), ids, len(ids), True, False)
        return list(ids[:n])

    def logits(self, token_ids: list[int], settings: Settings) -> Float32:
        """Teacher-forced logits [n, vocab]."""
        api, n = self._api, len(token_ids)
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = max(n, settings.ubatch)
        params.n_ubatch = settings.ubatch
        params.n_threads = params.n_threads_batch = 1
        params.flash_attn_type = {
            "auto": api.LLAMA_FLASH_ATTN_TYPE_AUTO,
            "on": api.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            "off": api.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        }[settings.flash_attention]
        params.type_k = params.type_v = {"f32": api.GGML_TYPE_F32, "f16": api.GGML_TYPE_F16}[
            settings.kv_dtype
        ]
        context = api.llama_init_from_model(self._model, params)
        batch = api.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i, token in enumerate(token_ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        if api.llama_decode(context, batch):
            raise RuntimeError("llama.cpp could not evaluate the tokens")
        n_vocab = api.llama_vocab_n_tokens(self._vocab)
        logits = np.empty((n, n_vocab), np.float32)
        for i in range(n):
            logits[i] = np.ctypeslib.as_array(api.llama_get_logits_ith(context, i), (n_vocab,))
        api.llama_batch_free(batch)
        api.llama_free(context)
        return logits

    def close(self) -> None:
        """Free the model."""
        self._api.llama_model_free(self._model)
