"""What is refused, by name: types, ranges, unknown fields, limits, and every field of the client."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.support import MODEL_ID, Running, Script, chat_body, completion_body, running_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = "abcdefgh"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    runner = Script(TEXT).runner(context_length=512)
    with running_server(runner, default_max_tokens=200, hard_max_tokens=400) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def refusal(http: httpx.Client, path: str, body: object, status: int = 400) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = http.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    return error


BAD_NUMBERS = [
    ("temperature", "999999"),
    ("temperature", "-0.1"),
    ("temperature", '"0.7"'),
    ("temperature", "1e400"),
    ("temperature", "true"),
    ("temperature", "[]"),
    ("top_p", "-1"),
    ("top_p", "1.1"),
    ("min_p", "2"),
    ("top_k", "-5"),
    ("top_k", "1.5"),
    ("repetition_penalty", "0"),
    ("repetition_penalty", "1e300"),
    ("frequency_penalty", "2.1"),
    ("presence_penalty", "-2.1"),
    ("seed", "9223372036854775808"),
    ("seed", "-9223372036854775809"),
    ("seed", "1.5"),
    ("max_tokens", "-1"),
    ("max_tokens", "1e400"),
    ("n", "0"),
    ("n", "true"),
    ("stop", '""'),
    ("stop", '["a", "b", "c", "d", "e"]'),
    ("stream", '"yes"'),
    ("return_token_ids", "1"),
]


@pytest.mark.parametrize(("name", "value"), BAD_NUMBERS)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_bad_value_is_a_400_that_names_the_field(
    http: httpx.Client, path: str, name: str, value: str
) -> None:
    body = chat_body() if path == CHAT else completion_body()
    written = json.dumps(body)[:-1] + f', "{name}": {value}}}'
    assert refusal(http, path, written.encode())["param"] == name


BAD_ENTRIES = [
    ("logit_bias", "9999999", "5"),
    ("logit_bias", "256", "5"),
    ("logit_bias", "AI", "-100"),
    ("logit_bias", "-1", "1"),
    ("logit_bias", "05", "1"),
    ("logit_bias", "5", "101"),
    ("logit_bias", "5", '"a"'),
    ("logit_bias", "5", "1e400"),
    ("metadata", "run", "3"),
    ("metadata", "a.b[0]`c", "null"),
    ("metadata", "", "1.0"),
]


@pytest.mark.parametrize(("name", "key", "value"), BAD_ENTRIES)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_bad_entry_of_a_map_is_named(
    http: httpx.Client, path: str, name: str, key: str, value: str
) -> None:
    good = {"logit_bias": '"1": 1, "2": 2', "metadata": '"1": "a", "2": "b"'}[name]
    body = chat_body() if path == CHAT else completion_body()
    for entries in (f"{json.dumps(key)}: {value}, {good}", f"{good}, {json.dumps(key)}: {value}"):
        written = json.dumps(body)[:-1] + f', "{name}": {{{entries}}}}}'
        assert refusal(http, path, written.encode())["param"] == f"{name}.{key}"


def test_a_huge_map_is_named_as_a_whole(http: httpx.Client) -> None:
    biases = {**{str(token): 1 for token in range(5000)}, "x": "a"}
    assert refusal(http, CHAT, chat_body(logit_bias=biases))["param"] == "logit_bias"


@pytest.mark.parametrize("levels", [1, 300, 700, 5000])
def test_a_number_out_of_range_is_found_at_any_depth(http: httpx.Client, levels: int) -> None:
    nested = "[" * levels + "1e400" + "]" * levels
    tool = f'{{"type": "function", "function": {{"name": "f", "parameters": {{"a": {nested}}}}}}}'
    error = refusal(http, CHAT, (json.dumps(chat_body())[:-1] + f', "tools": [{tool}]}}').encode())
    if error["code"] == "invalid_json":
        assert levels > 300
    else:
        assert error["param"] == "tools[0].function.parameters.a" + "[0]" * levels


def test_whole_numbers_may_have_a_fraction_of_zero(http: httpx.Client, server: Running) -> None:
    """JSON has one kind of number, and JSON Schema calls 3.0 an integer."""
    fields = '"max_tokens": 3.0, "seed": -7.0, "top_k": 4e1, "n": 1.0, "logprobs": 2.0'
    answer = http.post(
        COMPLETIONS,
        content=f'{{"model": "{MODEL_ID}", "prompt": [65.0, 66, 6.7e1], {fields}}}'.encode(),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 3
    sampler = server.runner.samplers[-1]
    assert (sampler.prompt, sampler.params.seed, sampler.params.top_k) == ((65, 66, 67), -7, 40)


@pytest.mark.parametrize("first", ["1", "null", '"a"'])
def test_the_last_of_two_equal_keys_counts(http: httpx.Client, first: str) -> None:
    body = json.dumps(completion_body())[:-1] + f', "max_tokens": {first}, "max_tokens": 3}}'
    answer = http.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    assert answer.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("written", ["3.5", "1e-3", "9007199254740993.0", "1e19", "-1.0", "true"])
def test_other_fractions_are_no_whole_numbers(http: httpx.Client, written: str) -> None:
    body = json.dumps(completion_body())[:-1] + f', "max_tokens": {written}}}'
    assert refusal(http, COMPLETIONS, body.encode())["param"] == "max_tokens"


CALL = {"name": "f", "arguments": "{}"}
MISSING_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "assistant", "content": [{"text": "a"}]}]}, "messages[0].content[0].type"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": CALL}]}]},
        "messages[0].tool_calls[0].type",
    ),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
    ({"tool_choice": {"function": {"name": "f"}}}, "tool_choice.type"),
    (
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "f"}}]},
            }
        },
        "tool_choice.allowed_tools.tools[0].type",
    ),
    ({"response_format": {}}, "response_format.type"),
]


@pytest.mark.parametrize(("fields", "param"), MISSING_TYPES)
def test_a_type_is_required_as_the_client_has_it(
    http: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    error = refusal(http, CHAT, {**chat_body(), **fields})
    assert (error["param"], error["code"]) == (param, "missing_field")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have(http: httpx.Client, value: str) -> None:
    written = json.dumps(chat_body())[:-1] + f', "temperature": {value}}}'
    assert refusal(http, CHAT, written.encode())["code"] == "invalid_json"


@pytest.mark.parametrize("value", [0, -1, 2**63 - 1, -(2**63)])
def test_the_whole_range_of_seeds_reaches_the_sampler(
    http: httpx.Client, server: Running, value: int
) -> None:
    assert http.post(CHAT, json=chat_body(seed=value)).status_code == 200
    assert server.runner.samplers[-1].params.seed == value


def test_sampling_fields_reach_the_sampler(http: httpx.Client, server: Running) -> None:
    fields = {
        "temperature": 2,
        "top_k": 40,
        "top_p": 0.5,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "frequency_penalty": -2,
        "presence_penalty": 2,
        "seed": 7,
    }
    http.post(COMPLETIONS, json=completion_body(logit_bias={"5": -100, "255": 1.5}, **fields))
    params = server.runner.samplers[-1].params
    assert {name: getattr(params, name) for name in fields} == fields
    assert params.logit_bias == ((5, -100.0), (255, 1.5))
    http.post(COMPLETIONS, json=completion_body(**dict.fromkeys(fields)))
    assert server.runner.samplers[-1].params == type(params)()


PROMPTS = [
    ([-1], "prompt[0]"),
    ([9999999], "prompt[0]"),
    ([1, 256], "prompt[1]"),
    ([1.5], "prompt[0]"),
    ([True], "prompt[0]"),
    ([2**80], "prompt[0]"),
    ([], "prompt"),
    ([[]], "prompt[0]"),
    ([[1], [2, 256]], "prompt[1][1]"),
    ([1, "a"], "prompt[1]"),
    (["a", [1]], "prompt[1]"),
    (["a", ""], "prompt[1]"),
    (["a"] * 129, "prompt"),
    ("", "prompt"),
    (None, "prompt"),
    ({"text": "a"}, "prompt"),
]


@pytest.mark.parametrize(("prompt", "param"), PROMPTS)
def test_bad_prompts(http: httpx.Client, prompt: object, param: str) -> None:
    assert refusal(http, COMPLETIONS, completion_body(prompt))["param"] == param


def test_a_stream_takes_one_prompt(http: httpx.Client) -> None:
    assert refusal(http, COMPLETIONS, completion_body(["a", "b"], stream=True))["param"] == "prompt"
    assert http.post(COMPLETIONS, json=completion_body(["a"], stream=True)).status_code == 200


def test_the_prompt_is_required(http: httpx.Client) -> None:
    error = refusal(http, COMPLETIONS, {"model": MODEL_ID})
    assert (error["param"], error["code"]) == ("prompt", "missing_field")


def test_a_refused_stream_is_json_with_a_status(http: httpx.Client) -> None:
    assert refusal(http, CHAT, chat_body(stream=True, n=0))["param"] == "n"


MESSAGES = [
    ([], "messages"),
    (None, "messages"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"content": "a"}], "messages[0].role"),
    ([{"role": "robot", "content": "a"}], "messages[0].role"),
    ([{"role": "user", "content": "a"}, {"role": "user", "content": 5}], "messages[1].content"),
    ([{"role": "user", "content": []}], "messages[0].content"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": "a", "opts": {}}], "messages[0].opts"),
    ([{"role": "assistant"}], "messages[0].content"),
    ([{"role": "tool", "content": "a"}], "messages[0].tool_call_id"),
    ([{"role": "tool", "content": "a", "tool_call_id": "c"}], "messages[0].tool_call_id"),
    (
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}],
        "messages[0].content[1].type",
    ),
    ([{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}], "messages[0].content[0].x"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
]


@pytest.mark.parametrize(("messages", "param"), MESSAGES)
def test_bad_messages(http: httpx.Client, messages: object, param: str) -> None:
    assert refusal(http, CHAT, {"model": MODEL_ID, "messages": messages})["param"] == param


def turn(arguments: str, content: object = None) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": arguments}}
    return [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call], "content": content},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]


@pytest.mark.parametrize("arguments", ["{", "[]", "7", "null"])
def test_broken_arguments_in_the_history(http: httpx.Client, arguments: str) -> None:
    error = refusal(http, CHAT, {"model": MODEL_ID, "messages": turn(arguments)})
    assert error["param"] == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize("content", [None, ""])
def test_a_history_with_calls(http: httpx.Client, server: Running, content: str | None) -> None:
    body = {"model": MODEL_ID, "messages": turn("", content)}
    assert http.post(CHAT, json=body).status_code == 200
    _, assistant, tool = server.conversations.seen[-1]
    assert [(call.id, call.name, call.arguments) for call in assistant.tool_calls] == [("c1", "echo", {})]
    assert (tool.role, tool.content, tool.tool_call_id) == ("tool", "ok", "c1")
    del body["messages"][1]["content"]  # type: ignore[attr-defined]
    assert http.post(CHAT, json=body).status_code == 200


@pytest.mark.parametrize("role", ["developer", "system", "user", "assistant"])
def test_text_parts_are_the_joined_text(http: httpx.Client, server: Running, role: str) -> None:
    parts = [{"type": "text", "text": "Say"}, {"type": "text", "text": " hi"}]
    body = {"model": MODEL_ID, "messages": [{"role": role, "content": parts, "name": "ann"}]}
    assert http.post(CHAT, json=body).status_code == 200
    (message,) = server.conversations.seen[-1]
    assert (message.role, message.content, message.name) == (role, "Say hi", "ann")


def test_text_parts_in_a_tool_message(http: httpx.Client, server: Running) -> None:
    messages = turn("{}")
    messages[2]["content"] = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert http.post(CHAT, json={"model": MODEL_ID, "messages": messages}).status_code == 200
    assert server.conversations.seen[-1][2].content == "ab"


def test_an_answer_can_be_sent_back(http: httpx.Client) -> None:
    message = http.post(CHAT, json=chat_body()).json()["choices"][0]["message"]
    nulls = {"tool_calls": None, "function_call": None, "audio": None, "annotations": None}
    messages = [{"role": "user", "content": "a"}, {**message, **nulls}, {"role": "user", "content": "b"}]
    assert http.post(CHAT, json={"model": MODEL_ID, "messages": messages}).status_code == 200


def test_the_template_s_own_sentence_is_the_answer(http: httpx.Client) -> None:
    error = refusal(http, CHAT, chat_body("refuse me"))
    assert error["param"] == "messages"
    assert error["message"] == "Conversation roles must alternate"


def test_the_default_and_the_hard_limit(http: httpx.Client) -> None:
    endless = Script("z", endless=True).runner(context_length=1024)
    with (
        running_server(endless, default_max_tokens=200, hard_max_tokens=400) as running,
        running.client() as client,
    ):
        for path, body in [(CHAT, chat_body()), (COMPLETIONS, completion_body())]:
            for asked, expected in [({}, 200), ({"max_tokens": 400}, 400)]:
                answer = client.post(path, json={**body, **asked}).json()
                assert answer["usage"]["completion_tokens"] == expected
                assert answer["choices"][0]["finish_reason"] == "length"
            error = refusal(client, path, {**body, "max_tokens": 401})
            assert error["param"] == "max_tokens"
            assert "401" in error["message"]
            assert "400" in error["message"]


def test_the_newer_limit_wins(http: httpx.Client) -> None:
    for limits in [{"max_completion_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": 32}]:
        answer = http.post(CHAT, json=chat_body(**limits)).json()
        assert answer["usage"]["completion_tokens"] == 3
    assert refusal(http, CHAT, chat_body(max_completion_tokens=401))["param"] == "max_completion_tokens"
    assert refusal(http, CHAT, chat_body(max_completion_tokens=0))["param"] == "max_completion_tokens"
    assert refusal(http, CHAT, chat_body(max_tokens=0))["param"] == "max_tokens"


def test_prompt_plus_budget_must_fit(http: httpx.Client, server: Running) -> None:
    for prompt, budget in [(600, 1), (500, 32), (512, 1), (400, 200)]:
        error = refusal(http, COMPLETIONS, completion_body([65] * prompt, max_tokens=budget))
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        for number in (prompt, budget, 512):
            assert str(number) in error["message"]
    n_steps = len(server.runner.batches)
    chat = refusal(http, CHAT, chat_body("x" * 505, max_tokens=8))
    assert (chat["code"], chat["param"]) == ("context_length_exceeded", "messages")
    assert len(server.runner.batches) == n_steps
    exact = http.post(COMPLETIONS, json=completion_body([65] * 508, max_tokens=4))
    assert exact.json()["usage"] == {
        "prompt_tokens": 508,
        "completion_tokens": 4,
        "total_tokens": 512,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_budget_nobody_asked_for_is_called_the_server_s(http: httpx.Client) -> None:
    error = refusal(http, COMPLETIONS, completion_body([65] * 510))
    assert (
        "`max_tokens` is 200, the server's default (--default-max-tokens), together 710" in error["message"]
    )
    assert "default" not in refusal(http, COMPLETIONS, completion_body([65] * 510, max_tokens=16))["message"]


def test_a_text_that_is_surely_too_long_is_not_even_tokenized() -> None:
    with running_server(longest_token=10) as running, running.client() as client:
        for path, body in [(CHAT, chat_body("é" * 5000)), (COMPLETIONS, completion_body("é" * 5007))]:
            message = refusal(client, path, {**body, "max_tokens": 12})["message"]
            assert message.startswith(
                "The prompt is too long for the budget: it has at least 501 tokens and `max_tokens` is 12, "
                "together 513;"
            )
        exact = refusal(client, COMPLETIONS, completion_body("e" * 5000, max_tokens=12))["message"]
        assert exact.startswith("The prompt is too long for the budget: it has 5000 tokens")
        several = completion_body(["a", "b" * 5001], max_tokens=12)
        assert refusal(client, COMPLETIONS, several)["param"] == "prompt[1]"


def test_a_large_body_is_checked_like_a_small_one(http: httpx.Client) -> None:
    many = [{"role": "user", "content": ""}] * 5000
    error = refusal(http, CHAT, {**chat_body(), "messages": [*many, {"role": "nobody", "content": ""}]})
    assert error["param"] == "messages[5000].role"


def test_a_turn_ends_where_the_next_one_would_begin() -> None:
    runner = Script("Paris.\n\nUser: And of Spain?").runner()
    with running_server(runner, turn_stops=("\n\nUser:",)) as running, running.client() as client:
        asked = {"max_tokens": 64, "return_token_ids": True}
        choice = client.post(CHAT, json=chat_body(**asked)).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Paris.", "stop")
        assert "token_ids" not in choice
        own = client.post(CHAT, json=chat_body(**asked, stop="ris")).json()["choices"][0]
        assert own["message"]["content"] == "Pa"
        raw = client.post(COMPLETIONS, json=completion_body(**asked)).json()["choices"][0]
        assert raw["text"].endswith("And of Spain?")
