"""The whole command on a real model, as its users run it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from ferrite.api import ModelLoadError, ServerConfig
from ferrite.cli.load import load_model
from tests.api.support import server_process

COMMAND = "import sys; from ferrite.cli.server import main; sys.exit(main())"


@pytest.mark.model
def test_the_seed_s_command_on_a_real_model(smollm2_path: Path) -> None:
    arguments = [
        "--model", str(smollm2_path), "--model-id", "hf/smollm2", "--api-key", "local-secret",
        "--threads", "1", "--default-max-tokens", "24", "--hard-max-tokens", "256",
        "--inference-wait-ms", "30000",
    ]  # fmt: skip
    with server_process(COMMAND, *arguments) as server:
        assert server.ready["load_seconds"] > 0
        assert server.ready["kernel_provider"]
        with openai.OpenAI(
            base_url=f"{server.url}/v1",
            api_key="local-secret",
            max_retries=0,
            http_client=openai.DefaultHttpxClient(trust_env=False, verify=False),
        ) as client:
            question: list[openai.types.chat.ChatCompletionMessageParam] = [
                {"role": "system", "content": "Answer in one sentence."},
                {"role": "user", "content": "What is the capital of France?"},
            ]
            whole = client.chat.completions.create(model="hf/smollm2", messages=question)
            stream = client.chat.completions.create(model="hf/smollm2", messages=question, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            assert "Paris" in text
            assert text == whole.choices[0].message.content
            assert client.models.retrieve("hf/smollm2").model_dump()["ferrite"]["architecture"] == "llama"
        refused = httpx.get(f"{server.url}/v1/models", trust_env=False, verify=False)
        assert refused.status_code == 401
    assert "Paris" not in server.log
    assert "capital" not in server.log


@pytest.mark.model
def test_the_seed_s_batching_command_on_a_real_model(smollm2_path: Path) -> None:
    arguments = [
        "--model", str(smollm2_path), "--model-id", "m", "--threads", "1", "--ctx-size", "1024",
        "--experimental-prefix-cache", "--prefix-cache-max-entries", "8", "--prefix-cache-max-mib", "64",
        "--experimental-batched-decode", "--max-batch-streams", "4", "--max-batch-queue", "4",
        "--kv-backend", "locus", "--kv-max-tokens", "512",
    ]  # fmt: skip
    with server_process(COMMAND, *arguments) as server:
        assert (server.ready["kv_policy"], server.ready["kv_max_tokens"]) == ("locus", 512)
        ceiling = server.ready["memory"]
        assert ceiling["sessions"] == 4
        with httpx.Client(base_url=server.url, trust_env=False, verify=False, timeout=120) as http:
            assert http.get("/v1/models/m").json()["context_length"] == 512
            bodies: list[dict[str, object]] = [
                {"model": "m", "prompt": f"{word} is", "max_tokens": 12, **sampling}
                for word in ("Paris", "Rome")
                for sampling in ({}, {"temperature": 1, "seed": 7})
            ]
            alone = [http.post("/v1/completions", json=body).json()["choices"] for body in bodies]
            with ThreadPoolExecutor(4) as pool:
                together = [pool.submit(http.post, "/v1/completions", json=body) for body in bodies]
                assert [answer.result().json()["choices"] for answer in together] == alone
            turn = {"model": "m", "max_tokens": 4, "prompt_cache_key": "k"}
            chat = {**turn, "messages": [{"role": "user", "content": "Count to ten. " * 20}]}
            cold, warm = (http.post("/v1/chat/completions", json=chat).json() for _ in range(2))
            assert warm["choices"] == cold["choices"]
            n_prompt = warm["usage"]["prompt_tokens"]
            assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1
            prefilled = http.get("/admin/stats").json()["batcher"]["prefill_tokens"]
            long = {"model": "m", "prompt": [1] * 600, "max_tokens": 8}
            refused = http.post("/v1/completions", json=long).json()["error"]
            assert "--kv-max-tokens" in refused["message"]
            admin = http.get("/admin/stats").json()
            assert admin["batcher"]["prefill_tokens"] == prefilled
            assert admin["batcher"]["kv_blocks_free"] == admin["batcher"]["kv_blocks_total"] == 128
            assert admin["memory"]["resident_bytes"] < ceiling["ceiling_bytes"]
    assert "memory ceiling" in server.log


def test_a_model_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ModelLoadError, match=r"^no/such\.gguf: [^\n]+$"):
        load_model(ServerConfig(model="no/such.gguf", threads=1))


@pytest.mark.model
def test_a_context_above_the_model_s_is_refused_by_option(smollm2_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"--ctx-size 8193 .*8192"):
        load_model(ServerConfig(model=str(smollm2_path), threads=1, ctx_size=8193))
