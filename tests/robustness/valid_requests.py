"""Valid requests of every route that takes a body, with most of the fields it knows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.api.support import MODEL_ID

LOOK_UP = {
    "name": "look_up",
    "description": "Looks a word up.",
    "parameters": {
        "type": "object",
        "properties": {"word": {"type": "string"}, "exact": {"type": "boolean"}},
        "required": ["word"],
        "additionalProperties": False,
    },
    "strict": True,
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CALL = {"name": "look_up", "arguments": '{"word":"tea"}'}
HISTORY = [
    {"role": "system", "content": "Be brief.", "name": "rules"},
    {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "tea?"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "It is a word.",
        "tool_calls": [{"id": "call_1", "type": "function", "function": CALL}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "A drink."},
    {"role": "developer", "content": "Stay brief."},
]
SAMPLING = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "repetition_penalty": 1.1,
    "seed": 7,
    "logit_bias": {"65": -1.5, "66": 2},
    "stop": ["END", "."],
    "user": "ann",
    "prompt_cache_key": "a key",
    "metadata": {"run": "3", "ferrite_cache_trace": "true"},
}
STREAMED = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}
USER = [{"role": "user", "content": "Say something."}]
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TOKENIZE, DETOKENIZE, RENDER = "/v1/tokenize", "/v1/detokenize", "/v1/chat/completions/render"


@dataclass(frozen=True, slots=True)
class Valid:
    """A request that is answered with 200."""

    name: str
    path: str
    body: Mapping[str, Any]

    def __str__(self) -> str:
        return self.name


_BODIES: Sequence[tuple[str, str, Mapping[str, Any]]] = [
    (
        "chat with tools and their results",
        CHAT,
        {
            "messages": HISTORY,
            "max_completion_tokens": 8,
            "tools": [
                {"type": "function", "function": LOOK_UP},
                {"type": "function", "function": {"name": "stop"}},
            ],
            "tool_choice": {"type": "function", "function": {"name": "look_up"}},
            "parallel_tool_calls": False,
        },
    ),
    (
        "chat among allowed tools",
        CHAT,
        {
            "messages": USER,
            "max_tokens": 8,
            "tools": [{"type": "function", "function": LOOK_UP}],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "look_up"}}],
                },
            },
        },
    ),
    (
        "chat with a schema",
        CHAT,
        {
            "messages": USER,
            "max_tokens": 12,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "person", "description": "Who.", "schema": SCHEMA, "strict": True},
            },
        },
    ),
    (
        "streamed chat with sampling",
        CHAT,
        {
            "messages": USER,
            "max_tokens": 4,
            "reasoning_effort": "none",
            "chat_template_kwargs": {"enable_thinking": False},
            "safety_identifier": "who",
            "store": False,
            "service_tier": "auto",
            **SAMPLING,
            **STREAMED,
        },
    ),
    (
        "chat with choices and log-probabilities",
        CHAT,
        {
            "messages": [*USER, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Go."}],
            "max_tokens": 3,
            "n": 2,
            "logprobs": True,
            "top_logprobs": 2,
            "response_format": {"type": "text"},
            "return_token_ids": True,
        },
    ),
    ("completion of a text", COMPLETIONS, {"prompt": "Once upon", "max_tokens": 4, **SAMPLING, **STREAMED}),
    ("completions of texts", COMPLETIONS, {"prompt": ["Once", "upon a"], "max_tokens": 2, "n": 2}),
    (
        "completion of token ids",
        COMPLETIONS,
        {"prompt": [79, 110, 99, 101], "max_tokens": 3, "echo": True, "logprobs": 2, "best_of": 1},
    ),
    (
        "completions of lists of token ids",
        COMPLETIONS,
        {"prompt": [[79, 110], [99, 101, 32]], "max_tokens": 2, "suffix": "", "return_token_ids": True},
    ),
    (
        "response to a text",
        RESPONSES,
        {
            "input": "Say something.",
            "instructions": "Be brief.",
            "max_output_tokens": 6,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            "reasoning": {"effort": "none"},
            "store": False,
            "truncation": "disabled",
            **{name: value for name, value in SAMPLING.items() if name != "seed"},
        },
    ),
    (
        "response with tools and their results",
        RESPONSES,
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "What is tea?"}]},
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "A word."}]},
                {"type": "function_call", "call_id": "call_1", "status": "completed", **CALL},
                {"type": "function_call_output", "call_id": "call_1", "output": "A drink."},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "A drink.", "annotations": []}],
                },
                {"role": "developer", "content": "Go on."},
            ],
            "max_output_tokens": 8,
            "tools": [{"type": "function", **LOOK_UP}],
            "tool_choice": {"type": "function", "name": "look_up"},
            "parallel_tool_calls": False,
        },
    ),
    (
        "streamed response with a schema",
        RESPONSES,
        {
            "input": [{"role": "user", "content": "Who?"}],
            "max_output_tokens": 12,
            "stream": True,
            "stream_options": {"include_obfuscation": False},
            "text": {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}},
        },
    ),
    (
        "tokens of a text",
        TOKENIZE,
        {"prompt": "Größe <end>", "add_special_tokens": True, "parse_special": False, "with_pieces": True},
    ),
    ("tokens of a chat", TOKENIZE, {"messages": HISTORY, "max_tokens": 4, "with_pieces": False}),
    ("text of tokens", DETOKENIZE, {"tokens": [71, 114, 195, 182], "skip_special_tokens": True}),
    (
        "prompt of a chat",
        RENDER,
        {"messages": HISTORY, "tools": [{"type": "function", "function": LOOK_UP}], "temperature": 1},
    ),
]
VALID = [Valid(name, path, {"model": MODEL_ID, **body}) for name, path, body in _BODIES]
