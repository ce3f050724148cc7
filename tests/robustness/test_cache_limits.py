"""The limits of the prefix cache hold at every moment, whatever is asked of it."""

from typing import Any

from ferrite.engine import EngineConfig
from ferrite.kv import PrefixLimits
from tests.api.support import WAIT_SECONDS, running_server
from tests.engine.fakes import FakeRunner
from tests.robustness.support import call, expected

MIB = 1 << 20


def test_two_hundred_prompts_and_one_that_is_too_large() -> None:
    runner = FakeRunner(n_blocks=2 * 256 + 64, context_length=1024, block_bytes=MIB)
    config = EngineConfig(
        max_concurrent=2,
        inference_wait_seconds=WAIT_SECONDS,
        prefix_cache=PrefixLimits(max_entries=8, max_bytes=64 * MIB),
    )
    with (
        running_server(runner, engine=config, experimental_prefix_cache=True) as running,
        running.client() as client,
    ):

        def ask(prompt: list[int]) -> Any:
            outcome = call(client, prompt, 3, prompt_cache_key="one for all")
            assert outcome == expected(prompt, 3, streamed=False)
            cache = client.get("/admin/stats").json()["prefix_cache"]
            assert cache["entries"] <= cache["max_entries"] == 8
            assert cache["bytes"] <= cache["max_bytes"] == 64 * MIB
            return cache

        # Of 5 to 29 blocks: sometimes the entries are the limit, sometimes the bytes.
        for number in range(200):
            full = ask([number % 256, *[number * 7 % 256] * (17 + number * 31 % 96)])
        assert full["evictions"] > 150
        # 75 blocks, where 64 may be kept: answered, not kept, and nobody is pushed out for it.
        after = ask([77] * 297)
        assert {name: after[name] for name in ("entries", "bytes", "evictions")} == {
            name: full[name] for name in ("entries", "bytes", "evictions")
        }
