"""The engine: admission, scheduling, the step loop in its own thread, and text events to asyncio."""

from ferrite.engine.config import EngineConfig
from ferrite.engine.engine import Engine
from ferrite.engine.errors import EngineBusy, EngineStopped, GenerationFailed, RequestTooLarge
from ferrite.engine.events import CacheTrace, Delta, Finished, Timings, TokenLogprob, Usage
from ferrite.engine.generation import Generation
from ferrite.engine.request import GenerationRequest
from ferrite.engine.text import Detokenizer

__all__ = [
    "CacheTrace",
    "Delta",
    "Detokenizer",
    "Engine",
    "EngineBusy",
    "EngineConfig",
    "EngineStopped",
    "Finished",
    "Generation",
    "GenerationFailed",
    "GenerationRequest",
    "RequestTooLarge",
    "Timings",
    "TokenLogprob",
    "Usage",
]
