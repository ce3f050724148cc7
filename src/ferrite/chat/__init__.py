"""Messages → prompt pieces, by the model file's own chat template."""

from ferrite.chat.messages import (
    ChatTemplateError,
    Message,
    Role,
    Segments,
    TemplateRefusedError,
    ToolCall,
)
from ferrite.chat.template import FALLBACK, ChatTemplate, PromptTokenizer
from ferrite.chat.template_options import TEMPLATE_OPTIONS

__all__ = [
    "FALLBACK",
    "TEMPLATE_OPTIONS",
    "ChatTemplate",
    "ChatTemplateError",
    "Message",
    "PromptTokenizer",
    "Role",
    "Segments",
    "TemplateRefusedError",
    "ToolCall",
]
