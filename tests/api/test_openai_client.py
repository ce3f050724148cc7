"""The official client against a real socket: whole and streamed answers, and what they agree on."""

from collections.abc import Iterator

import openai
import pytest

from tests.api.support import MODEL_ID, Running, Script, running_server

TEXT = "Hello, wörld! 🦀 日本"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(Script(TEXT).runner(context_length=512), default_max_tokens=64) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client


def test_a_chat_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL_ID, messages=[{"role": "user", "content": "Hi"}])
    choice = answer.choices[0]
    assert (answer.object, answer.model, choice.index) == ("chat.completion", MODEL_ID, 0)
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert answer.usage is not None
    n_tokens = len(TEXT.encode()) + 1
    assert answer.usage.completion_tokens == n_tokens
    assert answer.usage.prompt_tokens == len("user:Hi;")
    assert answer.usage.total_tokens == n_tokens + len("user:Hi;")
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_a_streamed_chat_is_the_whole_answer(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL_ID,
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    whole = client.chat.completions.create(model=MODEL_ID, messages=[{"role": "user", "content": "Hi"}])
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == ["stop"]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_text_completion_streamed_and_whole(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL_ID, prompt="Once", max_tokens=9)
    chunks = list(
        client.completions.create(
            model=MODEL_ID, prompt="Once", max_tokens=9, stream=True, stream_options={"include_usage": True}
        )
    )
    # The ninth byte is the first half of "ö"; what stays open at the end becomes a replacement mark.
    assert whole.choices[0].text == "Hello, w\ufffd"
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 9
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage == whole.usage


def test_completions_take_token_ids_and_several_prompts(client: openai.OpenAI, server: Running) -> None:
    by_ids = client.completions.create(model=MODEL_ID, prompt=list(b"Once"), max_tokens=5)
    by_text = client.completions.create(model=MODEL_ID, prompt="Once", max_tokens=5)
    assert by_ids.choices[0].text == by_text.choices[0].text == "Hello"
    several = client.completions.create(model=MODEL_ID, prompt=["One", "Two!"], max_tokens=3)
    assert [(choice.index, choice.text) for choice in several.choices] == [(0, "Hel"), (1, "Hel")]
    assert several.usage is not None
    assert (several.usage.prompt_tokens, several.usage.completion_tokens) == (7, 6)
    ids = client.completions.create(model=MODEL_ID, prompt=[[1, 2], [4]], max_tokens=3)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 3
    assert [sampler.prompt for sampler in server.runner.samplers[-2:]] == [(1, 2), (4,)]


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_asked_of_a_completion_generates_nothing(client: openai.OpenAI, *, stream: bool) -> None:
    before = client.completions.create(model=MODEL_ID, prompt="Once", max_tokens=0)
    assert (before.choices[0].text, before.choices[0].finish_reason) == ("", "length")
    assert before.usage is not None
    assert (before.usage.prompt_tokens, before.usage.completion_tokens) == (4, 0)
    if stream:
        chunks = list(client.completions.create(model=MODEL_ID, prompt="Once", max_tokens=0, stream=True))
        assert [(c.choices[0].text, c.choices[0].finish_reason) for c in chunks] == [("", "length")]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_small_limits_are_kept(client: openai.OpenAI, limit: int) -> None:
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]
    chat = client.chat.completions.create(model=MODEL_ID, messages=messages, max_tokens=limit)
    text = client.completions.create(model=MODEL_ID, prompt="Hi", max_tokens=limit)
    for answer in (chat, text):
        assert answer.usage is not None
        assert answer.usage.completion_tokens == limit
        assert answer.choices[0].finish_reason == "length"


def test_stop_strings_never_reach_the_client(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL_ID, prompt="x", stop=["o, w", "zz"])
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("Hell", "stop")
    chunks = list(client.completions.create(model=MODEL_ID, prompt="x", stop="o, w", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hell"


def test_token_ids_come_when_asked_for(client: openai.OpenAI) -> None:
    extra = {"return_token_ids": True}
    whole = client.completions.create(model=MODEL_ID, prompt="x", max_tokens=12, extra_body=extra)
    chunks = list(
        client.completions.create(model=MODEL_ID, prompt="x", max_tokens=12, stream=True, extra_body=extra)
    )
    expected = list(TEXT.encode()[:12])
    assert whole.choices[0].model_dump()["token_ids"] == expected
    streamed = [token for c in chunks for token in c.choices[0].model_dump().get("token_ids") or []]
    assert streamed == expected
    filtered = client.completions.create(model=MODEL_ID, prompt="x", stop="!", extra_body=extra)
    assert "token_ids" not in filtered.choices[0].model_dump()


def test_obfuscation_hides_the_length_of_the_text(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model=MODEL_ID, prompt="x", stream=True, stream_options={"include_obfuscation": True}
        )
    )
    padded = [len(c.choices[0].text.encode()) + len(c.model_dump()["obfuscation"]) for c in chunks[:-1]]
    assert set(padded) == {32}


def test_models(client: openai.OpenAI) -> None:
    (listed,) = client.models.list().data
    model = client.models.retrieve(MODEL_ID)
    assert listed == model
    assert model.id == MODEL_ID
    assert model.model_dump()["ferrite"] == {
        "context_length": 512,
        "n_params": 1234,
        "quantisation": "Q4_1",
        "architecture": "llama",
    }
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_errors_have_the_shape_the_client_reads(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "Hi"}])
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(
            model=MODEL_ID, messages=[{"role": "user", "content": "Hi"}], temperature=9
        )
    assert bad.value.param == "temperature"
