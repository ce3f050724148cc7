"""Float32 NumPy forward passes: what each architecture means, with no kernels and no cache.

Written from the architectures' papers and checked against llama.cpp. Nothing here imports ``ferrite``:
bytes are read by ``weights.py`` and de-quantised by the ``gguf`` package, so an error in our parser,
our unpacking or our kernels cannot hide in the oracle.
"""

from tests.reference.model import Reference, reference_logits

__all__ = ["Reference", "reference_logits"]
