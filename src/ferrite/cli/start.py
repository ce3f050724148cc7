"""The entry point of ``ferrite-server``: imports are most of what a small model's start takes."""

import gc
import os
from typing import NoReturn


def main() -> NoReturn:
    """Run the command, without garbage collection until the model is loaded: what a start makes, it keeps."""
    gc.disable()
    # NumPy's linear algebra, which nothing here uses, would start a thread for each core, and each would spin
    # for a while on a core that packs weights.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Imported here, so that the collector rests already: it would take a sixth of the imports' time.
    from ferrite.cli import server

    server.main()
