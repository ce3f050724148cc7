"""The whole command on a real model, as its users run it."""

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


def test_a_model_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ModelLoadError, match=r"^no/such\.gguf: [^\n]+$"):
        load_model(ServerConfig(model="no/such.gguf", threads=1))


@pytest.mark.model
def test_a_context_above_the_model_s_is_refused_by_option(smollm2_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"--ctx-size 8193 .*8192"):
        load_model(ServerConfig(model=str(smollm2_path), threads=1, ctx_size=8193))
