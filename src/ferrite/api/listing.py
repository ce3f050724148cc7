"""What the server says of itself and of its one model: ``/health`` and ``/v1/models``."""

import msgspec

from ferrite.api.config import ServerConfig
from ferrite.api.model import LoadedModel, ServerState


class ModelDetails(msgspec.Struct):
    """What the model file says; null while no model is loaded."""

    context_length: int | None
    n_params: int | None
    quantisation: str | None
    architecture: str | None


class ModelAnswer(msgspec.Struct):
    """The entry of the one model."""

    id: str
    object: str
    created: int
    owned_by: str
    context_length: int | None
    ferrite: ModelDetails


class ModelList(msgspec.Struct):
    """``GET /v1/models``."""

    object: str
    data: list[ModelAnswer]


class HealthAnswer(msgspec.Struct):
    """``GET /health``."""

    model: str
    ready: bool
    reason: str | None


def health_answer(config: ServerConfig, state: ServerState) -> HealthAnswer:
    """Return whether the server can generate now."""
    reason = state.unready_reason
    return HealthAnswer(config.model_id, reason is None, reason)


def model_answer(config: ServerConfig, model: LoadedModel | None) -> ModelAnswer:
    """Return the entry of the model, which is listed while it is not loaded too."""
    if model is None:
        details = ModelDetails(None, None, None, None)
        return ModelAnswer(config.model_id, "model", 0, "ferrite", None, details)
    details = ModelDetails(model.context_length, model.n_params, model.quantisation, model.architecture)
    return ModelAnswer(model.id, "model", model.created, "ferrite", model.context_length, details)
