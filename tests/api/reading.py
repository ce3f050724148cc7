"""Reading streams of chat and text completions."""

import json
from collections import defaultdict
from typing import Any

import httpx


def chunks_of(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every chunk of a stream that ends as it should."""
    answer = client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    *lines, end = answer.text.removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def choices_of(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Join the chunks of each choice: text, finish reason, log-probabilities, token ids."""
    joined: dict[int, dict[str, Any]] = defaultdict(
        lambda: {"text": "", "finish_reason": None, "logprobs": [], "token_ids": []}
    )
    for chunk in chunks:
        for choice in chunk["choices"]:
            found = joined[choice["index"]]
            assert found["finish_reason"] is None
            found["text"] += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            found["finish_reason"] = choice["finish_reason"]
            found["token_ids"] += choice.get("token_ids", [])
            found["logprobs"] += entries(choice["logprobs"])
    return dict(joined)


def entries(logprobs: dict[str, Any] | None) -> list[Any]:
    """Return one value for each token, whatever the form."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        assert logprobs["refusal"] is None
        return list(logprobs["content"])
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return list(zip(*(logprobs[name] for name in names), strict=True))


def plain_choices(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return a whole answer in the form of ``choices_of``."""
    return {
        choice["index"]: {
            "text": choice["text"] if "text" in choice else choice["message"]["content"],
            "finish_reason": choice["finish_reason"],
            "logprobs": entries(choice["logprobs"]),
            "token_ids": choice.get("token_ids", []),
        }
        for choice in answer["choices"]
    }
