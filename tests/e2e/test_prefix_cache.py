"""The prefix cache on a real model: what a hit saves, says and leaves equal."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest

from ferrite.gguf import open_gguf
from ferrite.tokenizer import Tokenizer, load_tokenizer
from tests.e2e.client import END_IDS, Answer, ask, batcher, token_ids
from tests.e2e.process import ferrite_server

pytestmark = pytest.mark.model

OPTIONS = ("--experimental-prefix-cache", "--ctx-size", "2048", "--hard-max-tokens", "400")
TEMPLATE_KEY = "tokenizer.chat_template"
FORGETFUL_TEMPLATE = """\
{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{% endif %}"""
"""Opens every answer with an empty thinking block that it leaves out of the history."""

Messages = list[dict[str, str]]


@pytest.fixture(scope="module")
def http(smollm2_path: Path) -> Iterator[httpx.Client]:
    """A server with a prefix cache of the default size: 8 entries, 64 MiB."""
    with ferrite_server(smollm2_path, *OPTIONS) as running, running.http() as client:
        yield client
        assert "ERROR" not in running.log


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    with open_gguf(smollm2_path) as file:
        return load_tokenizer(file.metadata)


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def written(messages: Messages, opening: str = "") -> str:
    """The prompt of a chat in SmolLM2's format."""
    turns = [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages]
    return "".join([*turns, "<|im_start|>assistant\n", opening])


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, parse_special=True, add_bos=True)


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common beginning, short of the second's last token, which is always evaluated."""
    pairs = zip(first, second[:-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_a_prefix_of_1000_tokens_on_completions(http: httpx.Client) -> None:
    prefix = token_ids(100, 1000)
    first = ask(http, prompt=[*prefix, 2000, 2001], max_tokens=1, prompt_cache_key="completions")
    assert first.cached_tokens == 0
    asked = {"prompt": [*prefix, 3000, 3001], "max_tokens": 12, "logit_bias": END_IDS}
    before = batcher(http)["prefill_tokens"]
    hit = ask(http, prompt_cache_key="completions", **asked)
    stream = ask(http, prompt_cache_key="completions", stream=True, **asked)
    assert batcher(http)["prefill_tokens"] - before == 2 + 1
    assert {hit.prompt_tokens, stream.prompt_tokens} == {1002}
    assert (hit.cached_tokens, stream.cached_tokens) == (1000, 1001)
    cold = ask(http, **asked)
    assert cold.cached_tokens == 0
    assert hit.content == stream.content == cold.content


def test_a_prefix_of_1000_tokens_on_chat(http: httpx.Client, tokenizer: Tokenizer) -> None:
    facts = [f"Room {number} is painted in colour {number * 7 % 50}." for number in range(85)]
    system = turn("system", " ".join(facts))
    chats = [[system, turn("user", question)] for question in ("Hello!", "Which room is red?")]
    prompts = [ids_of(tokenizer, written(chat)) for chat in chats]
    shared = common(*prompts)
    assert shared > 1000
    first = ask(http, messages=chats[0], max_tokens=1, prompt_cache_key="chat")
    assert (first.prompt_tokens, first.cached_tokens) == (len(prompts[0]), 0)
    cold = ask(http, messages=chats[1], max_tokens=12)
    hit = ask(http, messages=chats[1], max_tokens=12, prompt_cache_key="chat")
    again = ask(http, messages=chats[1], max_tokens=12, prompt_cache_key="chat", stream=True)
    assert (hit.cached_tokens, again.cached_tokens) == (shared, len(prompts[1]) - 1)
    assert hit.content == again.content == cold.content


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 300])
def test_the_same_prompt_four_times(http: httpx.Client, length: int) -> None:
    asked = {"prompt": token_ids(200 + length, length), "max_tokens": 20, "logit_bias": END_IDS}
    cold = ask(http, **asked)
    answers = [ask(http, prompt_cache_key=f"same {length}", **asked) for _ in range(4)]
    assert [answer.content for answer in answers] == [cold.content] * 4
    assert [answer.cached_tokens for answer in answers] == [0, *[length - 1] * 3]


def test_sampled_and_penalised_answers_are_those_of_the_cold_run(http: httpx.Client) -> None:
    for number, how in enumerate(({"temperature": 1.1, "seed": 5}, {"repetition_penalty": 1.3})):
        asked = {"prompt": token_ids(210, 40), "max_tokens": 16, "logit_bias": END_IDS, **how}
        answers = [ask(http, prompt_cache_key=key, **asked) for key in (None, f"{number}", f"{number}")]
        assert len({answer.content for answer in answers}) == 1
        assert answers[-1].cached_tokens == 39


def test_a_key_is_a_namespace_of_its_own(http: httpx.Client) -> None:
    asked = {"prompt": token_ids(220, 40), "max_tokens": 1}
    keys = ("mine", "yours", "", None, "mine", "yours")
    cached = [ask(http, prompt_cache_key=key, **asked).cached_tokens for key in keys]
    assert cached == [0, 0, 0, 0, 39, 39]


def test_the_answer_is_to_the_new_question(http: httpx.Client) -> None:
    prefix = token_ids(300, 600)
    edited = [*prefix[:290], prefix[290] + 1, *prefix[291:], 2000, 2001]
    prompts = [([*prefix, *token_ids(301, 5)], 0), ([*prefix, *token_ids(302, 9)], 600), (edited, 290)]
    prompts += [(prefix[:100], 99), ([*prefix[:100], *token_ids(303, 7)], 100)]
    fields: dict[str, Any] = {"max_tokens": 6, "logit_bias": END_IDS}
    answers = [ask(http, prompt=prompt, prompt_cache_key="edits", **fields) for prompt, _ in prompts]
    assert [answer.cached_tokens for answer in answers] == [cached for _, cached in prompts]
    cold = [ask(http, prompt=prompt, **fields) for prompt, _ in prompts[1:]]
    assert [answer.content for answer in answers[1:]] == [answer.content for answer in cold]
    assert all(len(answer.token_ids) == 6 for answer in answers)


QUESTIONS = ("Hi, I am Ada.", "What is two plus two?", "Name a river.", "And a city?", "Thank you!")


def five_turns(client: httpx.Client, **fields: Any) -> list[tuple[Answer, int, str]]:
    """Resend the whole chat each turn: the answer, the prompt tokens evaluated for it, and the prompt."""
    chat: Messages = [turn("system", "Answer in one short sentence.")]
    turns = []
    for question in QUESTIONS:
        chat.append(turn("user", question))
        before = batcher(client)["prefill_tokens"]
        answer = ask(client, messages=chat, max_tokens=24, **fields)
        turns.append((answer, batcher(client)["prefill_tokens"] - before, written(chat)))
        chat.append(turn("assistant", answer.text))
    return turns


def test_a_chat_of_five_turns_evaluates_only_new_text(
    http: httpx.Client, plain_http: httpx.Client, tokenizer: Tokenizer
) -> None:
    turns = five_turns(http, prompt_cache_key="chat of five turns")
    for (before, _, _), (answer, evaluated, _) in pairwise(turns):
        # Our own words came back as the ids that we generated; of the last one no KV was computed.
        assert answer.cached_tokens == before.prompt_tokens + before.completion_tokens - 1
        assert evaluated == answer.prompt_tokens - answer.cached_tokens
    assert [len(ids_of(tokenizer, prompt)) for _, _, prompt in turns] == [
        answer.prompt_tokens for answer, _, _ in turns
    ]
    # Without the option the key is accepted and does nothing.
    plain = five_turns(plain_http, prompt_cache_key="chat of five turns")
    assert [answer.content for answer, _, _ in plain] == [answer.content for answer, _, _ in turns]
    assert [answer.cached_tokens for answer, _, _ in plain] == [0] * 5
    assert [evaluated for _, evaluated, _ in plain] == [answer.prompt_tokens for answer, _, _ in plain]


@pytest.fixture(scope="module")
def forgetful_http(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """SmolLM2 with a template that rewrites the history."""
    with open_gguf(smollm2_path) as file:
        old = str(file.metadata.get(TEMPLATE_KEY)).encode()
    new = FORGETFUL_TEMPLATE.encode()
    copy = tmp_path_factory.mktemp("model") / "forgetful.gguf"
    content = smollm2_path.read_bytes()
    assert content.count(old) == 1
    copy.write_bytes(content.replace(old, new + b"{#" + b" " * (len(old) - len(new) - 4) + b"#}"))
    with ferrite_server(copy, *OPTIONS) as running, running.http() as client:
        yield client


def test_a_template_that_rewrites_the_history_is_told_truly(
    forgetful_http: httpx.Client, tokenizer: Tokenizer
) -> None:
    opening = "<think>\n\n</think>\n\n"
    chat = [turn("user", "Name a river in Africa.")]
    first_prompt = ids_of(tokenizer, written(chat, opening))
    first = ask(forgetful_http, messages=chat, max_tokens=24, prompt_cache_key="k")
    assert first.prompt_tokens == len(first_prompt)
    chat += [turn("assistant", first.text), turn("user", "And one in Asia?")]
    second_prompt = ids_of(tokenizer, written(chat, opening))
    shared = common([*first_prompt, *first.token_ids], second_prompt)
    assert 0 < shared < len(first_prompt)
    hit = ask(forgetful_http, messages=chat, max_tokens=24, prompt_cache_key="k")
    assert (hit.prompt_tokens, hit.cached_tokens) == (len(second_prompt), shared)
    assert ask(forgetful_http, messages=chat, max_tokens=24).content == hit.content
