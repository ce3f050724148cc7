"""Model files that attack, and the key that protects every route."""

import cProfile
import pstats
import struct
from itertools import islice
from pathlib import Path

import httpx
import pytest

from ferrite.api import ModelLoadError
from ferrite.api.auth import is_protected
from ferrite.gguf import open_gguf
from ferrite.tokenizer import load_tokenizer
from ferrite.tokenizer.bytelevel import BYTE_ALPHABET
from tests.api.support import Script, chat_body, running_server
from tests.chat.templates import CHATML_WITH_TOOLS
from tests.field_reports.conftest import MakeModel
from tests.field_reports.serving import (
    CHAT,
    COMPLETIONS,
    RENDER,
    RESPONSES,
    TOKENIZE,
    serving,
    user,
)
from tests.gguf import build
from tests.gguf.build import Build, Tensor

FILES: dict[str, tuple[bytes, str]] = {
    "a dimension of 2^42+1": (bytes(Build([], [Tensor("t", (2**42 + 1,))], bytes(32))), "tensor 't'"),
    "a product that overflows": (bytes(Build([], [Tensor("t", (2**32, 2**32))], bytes(32))), "tensor 't'"),
    "2^60 tensors": (bytes(Build(n_tensors=1 << 60)), "tensors"),
    "a string of 2^40 bytes": (
        bytes(Build([build.raw_pair("k", build.STRING, struct.pack("<Q", 1 << 40) + bytes(150))])),
        "key 'k'",
    ),
    "five dimensions": (bytes(Build([], [Tensor("t", (1, 1, 1, 1, 1))], bytes(32))), "tensor 't'"),
    "an offset beyond the end": (bytes(Build([], [Tensor("t", (8,), 0, 1 << 40)], bytes(32))), "tensor 't'"),
    "two overlapping tensors": (bytes(Build([], [Tensor("a"), Tensor("b")], bytes(64))), "'a' and 'b'"),
    "a key without a name": (bytes(Build([build.pair("", build.U32, 1)])), "key 0"),
    "a key twice": (bytes(Build([build.pair("n", build.U8, 1)] * 2)), "key 'n'"),
    "an alignment of 3": (
        bytes(Build([build.pair("general.alignment", build.U32, 3)], [Tensor("t")], bytes(64))),
        "general.alignment",
    ),
    "an unknown type": (bytes(Build([build.raw_pair("k", 99, bytes(8))])), "key 'k'"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused_at_load(tmp_path: Path, name: str) -> None:
    """FR-45 and FR-46."""
    content, named = FILES[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match="bad") as refused, serving(path):
        pass
    assert "\n" not in str(refused.value)
    assert named in str(refused.value)


HOSTILE = [
    "{{ cycler.__init__.__globals__ }}",
    "{{ ''.__class__.__mro__ }}",
    "{% set _ = messages.append(1) %}",
    "{% for i in range(10 ** 9) %}x{% endfor %}",
    "{{ 'a' * 10 ** 10 }}",
]


@pytest.mark.parametrize("written", HOSTILE)
def test_a_template_that_attacks_is_a_400_on_every_route(make_model: MakeModel, written: str) -> None:
    """FR-47."""
    guarded = "{% if 'attack' in messages[-1].content %}" + written + "{% endif %}"
    tool = {"type": "function", "function": {"name": "f"}}
    flat = {"type": "function", "name": "f"}
    with serving(make_model(template=guarded + CHATML_WITH_TOOLS)) as served:
        for path in (CHAT, TOKENIZE, RENDER):
            for body in ({"messages": user("attack")}, {"messages": user("attack"), "tools": [tool]}):
                error = served.refusal(path, **body)
                assert (error["param"], error["code"]) == ("messages", "chat_template_error")
                assert "Traceback" not in error["message"]
                assert "\n" not in error["message"]
        assert served.refusal(CHAT, messages=user("attack"), stream=True)["param"] == "messages"
        for fields in ({"input": "attack"}, {"input": "attack", "tools": [flat]}):
            assert served.refusal(RESPONSES, **fields)["code"] == "chat_template_error"
        assert served.chat("Hi", max_tokens=1)["usage"]["completion_tokens"] == 1
        assert served.answer(COMPLETIONS, prompt="attack", max_tokens=1)


def test_every_path_of_the_router_needs_the_key_or_is_on_the_open_list() -> None:
    """FR-48."""
    with (
        running_server(Script("ok").runner(), api_key="k1") as running,
        httpx.Client(base_url=running.url, trust_env=False, verify=False) as http,
    ):
        routes = [(route.path, method) for route in running.server.config.app.routes  # type: ignore[union-attr]
                  for method in route.methods]  # fmt: skip
        assert ("/v1/chat/completions/render", "POST") in routes
        paths = [(path.replace("{id:path}", "maker/tiny-model"), method) for path, method in routes]
        paths += [("/v1/nope", "GET"), ("/v1/nope", "POST"), ("/admin/nope", "GET")]
        opened = set()
        for path, method in paths:
            for authorization, content in ((None, b"{not json"), ("Bearer wrong", b""), ("Basic k1", b"{}")):
                headers = {"authorization": authorization} if authorization else {}
                answer = http.request(method, path, headers=headers, content=content)
                if answer.status_code != 401:
                    opened.add(path)
                    continue
                assert answer.headers["www-authenticate"] == "Bearer"
                if method != "HEAD":
                    assert answer.json()["error"]["code"] == "invalid_api_key"
            for authorization in ("Bearer k1", "bearer k1", "Bearer  k1"):
                answer = http.request(method, path, headers={"authorization": authorization}, content=b"{")
                assert answer.status_code != 401
        assert opened == {"/health", "/metrics", "/", "/openapi.json"}
        assert not any(map(is_protected, opened))
        answer = http.post(CHAT, json=chat_body(), headers={"authorization": "bearer k1"})
        assert answer.json()["choices"][0]["message"]["content"] == "ok"


def vocabulary(size: int) -> list[str]:
    """A byte-level vocabulary of ``size`` tokens: the bytes, then texts of three of them."""
    alphabet = list(BYTE_ALPHABET.values())
    texts = (f"{a}{b}{c}" for a in alphabet[:60] for b in alphabet[:60] for c in alphabet[:60])
    return [*alphabet, *islice(texts, size - len(alphabet))]


def calls_while_loading(path: Path, size: int) -> int:
    """How many functions are called to open a file and make its tokenizer."""
    tokens = vocabulary(size)
    pairs = [
        build.pair("general.architecture", build.STRING, "llama"),
        build.pair("tokenizer.ggml.model", build.STRING, "gpt2"),
        build.pair("tokenizer.ggml.pre", build.STRING, "gpt-2"),
        build.array_pair("tokenizer.ggml.tokens", build.STRING, [*tokens]),
        build.array_pair("tokenizer.ggml.token_type", build.I32, [1] * size),
        build.array_pair("tokenizer.ggml.merges", build.STRING, []),
        build.pair("tokenizer.ggml.add_bos_token", build.BOOL, False),
    ]
    path.write_bytes(bytes(Build(pairs)))
    profile = cProfile.Profile()
    with profile, open_gguf(path) as file:
        assert load_tokenizer(file.metadata).vocab_size == size
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_a_large_vocabulary_takes_work_in_proportion(tmp_path: Path) -> None:
    """FR-45: checking every length has not made honest files slow."""
    small, large = (calls_while_loading(tmp_path / "v.gguf", size) for size in (5_000, 40_000))
    assert large < 8 * small * 1.1
    assert large < 40_000 * 6
