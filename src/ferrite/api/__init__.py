"""The HTTP side: routes, wire types, limits, errors and streams in OpenAI's shapes."""

from ferrite.api.app import build_app
from ferrite.api.config import ServerConfig, load_config
from ferrite.api.model import LoadedModel, ModelLoadError, ServerState
from ferrite.api.options import Address, ConfigError

__all__ = [
    "Address",
    "ConfigError",
    "LoadedModel",
    "ModelLoadError",
    "ServerConfig",
    "ServerState",
    "build_app",
    "load_config",
]
