"""``ferrite-server``: options, where they come from, what contradicts what, ready line and signals."""

import json
import math
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.api import Address, ConfigError, LoadedModel, ModelLoadError, ServerConfig, load_config
from ferrite.api.options import flag_name, options_of
from ferrite.api.threads import _core, _physical_cores, _quota, automatic_threads, worker_count
from ferrite.cli.server import build_parser, run
from tests.api.support import server_process

OPTIONS = options_of(ServerConfig)
WITHOUT_MODEL = (
    "import sys; from ferrite.cli.server import run; sys.exit(run(sys.argv[1:], {}, lambda config: None))"
)


def parsed(*arguments: str, environ: Mapping[str, str] | None = None) -> ServerConfig:
    return load_config(vars(build_parser().parse_args(arguments)), environ or {})


def never_load(_: ServerConfig) -> LoadedModel:
    raise AssertionError("a model was read")


def failure(capsys: pytest.CaptureFixture[str], *arguments: str, **environ: str) -> str:
    assert run(arguments, environ, never_load) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ferrite-server: ")
    assert err.count("\n") == 1
    return err


def test_the_defaults() -> None:
    config = parsed()
    assert config == ServerConfig()
    assert str(config.bind) == "127.0.0.1:8080"
    assert (config.model, config.model_id, config.api_key) == (None, "ferrite-local", None)
    assert (config.default_max_tokens, config.hard_max_tokens) == (16, 256)
    assert (config.sessions, config.wait_seconds, config.block_tokens) == (1, 0.0, 16)
    assert (config.kernel_provider, config.kv_backend, config.kv_dtype) == ("auto", "vec", "f16")
    assert (config.max_body_bytes, config.request_timeout_ms, config.drain_timeout_ms) == (2 << 20, 0, 30_000)
    assert (config.log_format, config.access_log, config.unknown_fields) == ("text", True, "refuse")


FLAGS = """
--bind --model --model-id --offline --api-key --api-key-file --default-max-tokens --hard-max-tokens
--inference-wait-ms --threads --kernel-provider --max-concurrent-inferences
--experimental-prefix-cache --prefix-cache-max-entries --prefix-cache-max-mib
--experimental-residual-q8-activation-matvec
--experimental-batched-decode --max-batch-streams --max-batch-queue
--kv-backend --kv-tokens-per-block --kv-max-tokens --kv-dtype --ctx-size --config --cors-origin
--log-format --access-log --max-body-bytes --request-timeout-ms --drain-timeout-ms --unknown-fields
--speculate
"""


def test_the_flags_are_these() -> None:
    assert {flag_name(name) for name in OPTIONS} == set(FLAGS.split())


def test_the_version_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--version", "-V"):
        assert run([flag], {"FERRITE_THREADS": "x"}, never_load) == 0
        assert re.fullmatch(r"ferrite-server \d+\.\d+.*\n", capsys.readouterr().out)


def test_the_seed_s_command_line() -> None:
    config = parsed(
        "--model", "m.gguf", "--model-id", "qwen2.5-0.5b-q4_k_m", "--bind", "127.0.0.1:8080", "--api-key",
        "local-secret", "--default-max-tokens", "32", "--hard-max-tokens", "256",
        "--inference-wait-ms", "30000",
    )  # fmt: skip
    assert (config.model, config.model_id, config.api_key) == (
        "m.gguf",
        "qwen2.5-0.5b-q4_k_m",
        "local-secret",
    )
    assert (config.default_max_tokens, config.inference_wait_ms) == (32, 30_000)
    assert "local-secret" not in repr(config)


def test_a_flag_beats_the_environment_and_that_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "ferrite.toml"
    file.write_text('model-id = "file"\nthreads = 3\nhard-max-tokens = 99\naccess-log = false\n')
    environ = {"FERRITE_CONFIG": str(file), "FERRITE_THREADS": "2", "FERRITE_MODEL_ID": "environment"}
    config = parsed("--model-id", "flag", environ=environ)
    assert (config.model_id, config.threads, config.hard_max_tokens) == ("flag", 2, 99)
    assert (config.access_log, config.default_max_tokens) == (False, 16)
    assert parsed("--access-log", environ=environ).access_log is True
    assert parsed(environ={"FERRITE_ACCESS_LOG": "no"}).access_log is False


def test_every_option_has_a_variable() -> None:
    values = {
        "bind": "[::1]:0", "model": "m", "model_id": "a/b", "offline": "true", "api_key": "k",
        "default_max_tokens": "2", "hard_max_tokens": "3", "inference_wait_ms": "4", "threads": "5",
        "kernel_provider": "portable", "max_concurrent_inferences": "6", "kv_dtype": "f32", "ctx_size": "7",
        "cors_origin": "https://a.example http://b.example:8", "log_format": "json", "access_log": "0",
        "max_body_bytes": "8", "request_timeout_ms": "9", "drain_timeout_ms": "10",
        "unknown_fields": "ignore", "speculate": "ngram",
    }  # fmt: skip
    config = parsed(environ={f"FERRITE_{name.upper()}": value for name, value in values.items()})
    for name in values:
        assert getattr(config, name) != getattr(ServerConfig(), name)
    assert config.bind == Address("::1", 0)
    assert config.cors_origin == ("https://a.example", "http://b.example:8")


def test_origins_are_repeatable() -> None:
    config = parsed("--cors-origin", "https://a.example", "--cors-origin", "*")
    assert config.cors_origin == ("https://a.example", "*")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modell = 1", "unknown key 'modell' (did you mean 'model'?)"),
        ("zzz = 1", "unknown key 'zzz'"),
        ("config = 'x'", "unknown key 'config'"),
        ("model_id = 'x'", "unknown key 'model_id' (did you mean 'model-id'?)"),
        ("threads = '3'\n[table]", "unknown key 'table'"),
        ("threads = true", "threads: True is not a whole number"),
        ("threads = 1.5", "threads: 1.5 is not a whole number"),
        ("access-log = 1", "access-log: 1 is not true or false"),
        ("model-id = 3", "model-id: 3 is not text"),
        ("cors-origin = [3]", "cors-origin: 3 is not an origin"),
        ("= 3", "Invalid"),
    ],
)
def test_bad_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text)
    line = failure(capsys, "--config", str(file))
    assert str(file) in line
    assert message in line


def test_a_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "No such file" in failure(capsys, "--config", str(tmp_path / "none.toml"))
    assert "No such file" in failure(capsys, "--api-key-file", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--default-max-tokens 300", "--default-max-tokens --hard-max-tokens"),
        ("--hard-max-tokens 8", "--default-max-tokens --hard-max-tokens"),
        ("--api-key a --api-key-file f", "--api-key --api-key-file"),
        ("--prefix-cache-max-entries 8", "--prefix-cache-max-entries --experimental-prefix-cache"),
        ("--prefix-cache-max-mib 64", "--prefix-cache-max-mib --experimental-prefix-cache"),
        ("--max-batch-streams 4", "--max-batch-streams --experimental-batched-decode"),
        ("--max-batch-queue 4", "--max-batch-queue --experimental-batched-decode"),
        ("--experimental-batched-decode", "--experimental-batched-decode --max-batch-streams"),
        (
            "--max-batch-streams 2 --experimental-batched-decode"
            " --experimental-residual-q8-activation-matvec",
            "--experimental-residual-q8-activation-matvec --experimental-batched-decode",
        ),
        ("--kv-tokens-per-block 16", "--kv-tokens-per-block --kv-backend"),
        ("--kv-max-tokens 64", "--kv-max-tokens --kv-backend"),
        ("--kv-backend locus", "--kv-backend --kv-max-tokens"),
        (
            "--experimental-batched-decode --max-batch-streams 2 --max-concurrent-inferences 2",
            "--max-concurrent-inferences --experimental-batched-decode --max-batch-streams",
        ),
        (
            "--experimental-batched-decode --max-batch-streams 2 --max-batch-queue 2 --inference-wait-ms 0",
            "--inference-wait-ms --max-batch-queue",
        ),
    ],
)
def test_contradictions_name_both_options(
    capsys: pytest.CaptureFixture[str], arguments: str, named: str
) -> None:
    line = failure(capsys, *arguments.split(), "--model", "would-be-read.gguf")
    assert all(option in line for option in named.split())


@pytest.mark.parametrize(
    ("arguments", "sessions", "waiting_limit", "wait_seconds"),
    [
        ("--max-concurrent-inferences 3 --inference-wait-ms 250", 3, 64, 0.25),
        ("--experimental-batched-decode --max-batch-streams 4", 4, 4, math.inf),
        ("--experimental-batched-decode --max-batch-streams 4 --max-batch-queue 7", 4, 7, math.inf),
        ("--experimental-batched-decode --max-batch-streams 4 --max-batch-queue 0", 4, 0, math.inf),
        ("--experimental-batched-decode --max-batch-streams 4 --inference-wait-ms 500", 4, 4, 0.5),
        ("--experimental-batched-decode --max-batch-streams 4 --inference-wait-ms 0", 4, 4, 0.0),
    ],
)
def test_who_may_run_and_who_may_wait(
    arguments: str, sessions: int, waiting_limit: int, wait_seconds: float
) -> None:
    config = parsed(*arguments.split())
    assert (config.sessions, config.waiting_limit, config.wait_seconds) == (
        sessions,
        waiting_limit,
        wait_seconds,
    )


def test_the_seed_s_batching_and_locus_command_lines() -> None:
    config = parsed(
        "--experimental-prefix-cache", "--prefix-cache-max-entries", "8", "--prefix-cache-max-mib", "64",
        "--experimental-batched-decode", "--max-batch-streams", "4", "--max-batch-queue", "4",
        "--kv-backend", "locus", "--kv-tokens-per-block", "32", "--kv-max-tokens", "8192",
        "--kv-dtype", "q8_0",
    )  # fmt: skip
    assert (config.prefix_cache_max_entries, config.prefix_cache_max_mib) == (8, 64)
    assert (config.kv_backend, config.block_tokens, config.kv_max_tokens) == ("locus", 32, 8192)
    assert config.kv_dtype == "q8_0"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--bind", "8080"),
        ("--bind", "::1:8080"),
        ("--bind", ":8080"),
        ("--bind", "localhost:"),
        ("--bind", "localhost:65536"),
        ("--bind", "localhost:-1"),
        ("--threads", "0"),
        ("--threads", "four"),
        ("--threads", "1e3"),
        ("--threads", "٣"),
        ("--hard-max-tokens", "9" * 5000),
        ("--kernel-provider", "cuda"),
        ("--kv-backend", "paged"),
        ("--kv-tokens-per-block", "24"),
        ("--kv-tokens-per-block", "0"),
        ("--kv-max-tokens", "0"),
        ("--max-batch-streams", "0"),
        ("--kv-dtype", "q4_0"),
        ("--log-format", "xml"),
        ("--unknown-fields", "drop"),
        ("--model-id", ""),
        ("--model-id", " padded "),
        ("--model", ""),
        ("--api-key", ""),
        ("--api-key", "two words"),
        ("--api-key", "ключ"),
        ("--cors-origin", "app.example"),
        ("--cors-origin", "https://app.example/"),
        ("--request-timeout-ms", "-1"),
    ],
)
def test_bad_values_name_their_option(capsys: pytest.CaptureFixture[str], option: str, value: str) -> None:
    assert failure(capsys, f"{option}={value}").startswith(f"ferrite-server: {option}: ")
    variable = f"FERRITE_{option[2:].upper().replace('-', '_')}"
    assert failure(capsys, **{variable: value}).startswith(f"ferrite-server: {variable}: ")


def test_a_block_that_does_not_fit_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    line = failure(capsys, "--kv-backend", "locus", "--kv-max-tokens", "64", "--kv-tokens-per-block", "24")
    assert line == "ferrite-server: --kv-tokens-per-block: 24 is not a multiple of 16\n"


def test_an_api_key_is_never_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert "two words" not in failure(capsys, "--api-key", "two words")


@pytest.mark.parametrize("arguments", [["--nope"], ["--thread", "3"], ["--threads"], ["stray"]])
def test_an_unknown_option_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert arguments[0] in failure(capsys, *arguments)


def test_the_key_can_come_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    assert parsed("--api-key-file", str(file)).api_key == "s3cret"
    for content in ("", "\n", "two words", "a\nb"):
        file.write_text(content)
        assert "--api-key-file" in failure(capsys, "--api-key-file", str(file))
    file.write_bytes(b"\xff")
    assert "not UTF-8" in failure(capsys, "--api-key-file", str(file))


def test_openmp_s_variable_counts_last() -> None:
    assert parsed(environ={"OMP_NUM_THREADS": "4,2"}).threads == 4
    assert parsed(environ={"OMP_NUM_THREADS": "4", "FERRITE_THREADS": "3"}).threads == 3
    assert parsed("--threads", "2", environ={"OMP_NUM_THREADS": "x"}).threads == 2
    with pytest.raises(ConfigError, match="OMP_NUM_THREADS"):
        parsed(environ={"OMP_NUM_THREADS": "x"})


@pytest.mark.parametrize(
    ("usable_cpus", "physical_cores", "expected"),
    [(1, 1, 1), (2, 2, 1), (4, 4, 3), (8, 4, 4), (3, 4, 2), (2, 1, 1), (64, 32, 32)],
)
def test_automatic_threads_leave_a_cpu_for_http(usable_cpus: int, physical_cores: int, expected: int) -> None:
    assert worker_count(usable_cpus=usable_cpus, physical_cores=physical_cores) == expected


def test_cores_and_quotas_are_read_from_the_system(tmp_path: Path) -> None:
    for cpu, core in enumerate("0011"):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{core}\n")
    assert _physical_cores(range(4), tmp_path) == 2
    assert _physical_cores([0, 1, 7], tmp_path) == 2
    assert _core(tmp_path / "cpu9", 9) == ("unknown", "9")
    limit = tmp_path / "cpu.max"
    for text, expected in [("250000 100000", 2), ("5000 100000", 1), ("max 100000", 1 << 20)]:
        limit.write_text(text)
        assert _quota(limit) == expected
    assert 1 <= automatic_threads() <= (os.cpu_count() or 1)


@given(st.text())
def test_any_text_is_a_value_or_a_one_line_error(value: str) -> None:
    for option in OPTIONS.values():
        outcome = value_or_message(option.parse, value)
        assert not isinstance(outcome, ValueError) or str(outcome)


def value_or_message(parse: object, value: str) -> object:
    assert callable(parse)
    try:
        return parse(value)
    except ValueError as error:
        return error


def test_help_needs_no_model_and_shows_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "-h"):
        with pytest.raises(SystemExit) as exit_:
            run([flag], {"FERRITE_THREADS": "x"}, never_load)
        assert exit_.value.code == 0
        text = capsys.readouterr().out
        assert all(flag_name(field.name) in text for field in fields(ServerConfig))


def test_a_taken_address_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with server_process(WITHOUT_MODEL) as first:
        address = first.ready["address"]
        assert run(["--bind", str(address), "--model", "m"], {}, never_load) == 1
    assert f"--bind {address}: Address already in use" in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def load(_: ServerConfig) -> LoadedModel:
        raise ModelLoadError("m.gguf: not a GGUF file")

    assert run(["--bind", "127.0.0.1:0", "--model", "m.gguf"], {}, load) == 1
    assert capsys.readouterr().err == "ferrite-server: m.gguf: not a GGUF file\n"


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_the_ready_line_and_a_clean_end(stop: signal.Signals) -> None:
    with server_process(WITHOUT_MODEL, "--threads", "3", "--log-format", "json", stop=stop) as server:
        assert server.ready.pop("pid") == server.pid
        address = str(server.ready.pop("address"))
        assert server.ready == {
            "event": "ferrite.server.ready",
            "model": "ferrite-local",
            "load_seconds": None,
            "kernel_provider": "auto",
            "cpu_features": None,
            "threads": 3,
            "kv_policy": "vec",
            "kv_dtype": "f16",
            "kv_tokens_per_block": None,
            "kv_max_tokens": None,
            "memory": None,
        }
        answer = httpx.get(f"http://{address}/health", trust_env=False, verify=False)
        assert answer.json() == {"model": "ferrite-local", "ready": False, "reason": "no_model"}
    (line,) = server.log.splitlines()
    row = json.loads(line)
    assert (row["message"], row["path"], row["status"], row["level"]) == ("request", "/health", 200, "info")
    assert row["request_id"] == answer.headers["x-request-id"]
