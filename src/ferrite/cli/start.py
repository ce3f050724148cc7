"""The entry point of ``ferrite-server``: imports are most of what a small model's start takes."""

import gc
from typing import NoReturn


def main() -> NoReturn:
    """Run the command, without garbage collection until the model is loaded: what a start makes, it keeps."""
    gc.disable()
    # Imported here, so that the collector rests already: it would take a sixth of the imports' time.
    from ferrite.cli import server

    server.main()
