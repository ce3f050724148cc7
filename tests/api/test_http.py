"""Routes, methods, bodies, request ids, CORS and health, as plain HTTP."""

import json
import logging
from collections.abc import Iterator

import httpx
import pytest

from ferrite.api.errors import ApiError
from ferrite.api.routes import LATER_ROUTES
from tests.api.support import (
    MODEL_ID,
    Running,
    Script,
    chat_body,
    completion_body,
    eventually,
    running_server,
)

LIMIT = 4096
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    origins = ("https://app.example",)
    with running_server(Script("ok").runner(), cors_origin=origins, max_body_bytes=LIMIT) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def error_of(answer: httpx.Response) -> dict[str, str | None]:
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])


def test_health_says_ready(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"model": MODEL_ID, "ready": True, "reason": None}


def test_without_a_model_health_is_200_and_generation_503() -> None:
    with running_server(load=False) as running, running.client() as client:
        assert client.get("/health").json() == {"model": MODEL_ID, "ready": False, "reason": "no_model"}
        answer = client.post("/v1/chat/completions", json=chat_body())
        assert answer.status_code == 503
        assert error_of(answer)["code"] == "not_ready"
        assert client.post("/v1/chat/completions", json=chat_body(n=0)).status_code == 400
        assert client.post("/v1/chat/completions", json={**chat_body(), "model": "x"}).status_code == 404
        assert client.post("/v1/chat/completions", json=chat_body(max_tokens=9999)).status_code == 400
        details = client.get("/v1/models").json()["data"][0]["ferrite"]
        assert set(details.values()) == {None}


@pytest.mark.parametrize("path", ["/nope", "/v1/nope", "/v1/chat/completions/", "/admin", "/v1/models/"])
def test_unknown_paths_are_404(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 404
    assert error_of(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/completions", "POST"),
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/v1/models/a/b", "GET, HEAD"),
        ("OPTIONS", "/v1/models", "GET, HEAD"),
        ("GET", "/v1/responses", "POST"),
    ],
)
def test_other_methods_are_405_with_the_right_ones(
    http: httpx.Client, method: str, path: str, allowed: str
) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert error_of(answer)["code"] == "method_not_allowed"


@pytest.mark.parametrize(("path", "method", "name"), [(path, *route) for path, route in LATER_ROUTES.items()])
def test_routes_that_come_later_are_501_by_name(
    http: httpx.Client, path: str, method: str, name: str
) -> None:
    answer = http.request(method, path, json={})
    assert answer.status_code == 501
    assert error_of(answer)["message"] == f"{name} ({method} {path}) not supported yet."
    assert error_of(answer)["code"] == "not_implemented"
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_other_content_types_are_415(http: httpx.Client, headers: dict[str, str]) -> None:
    answer = http.post("/v1/chat/completions", content=b"{}", headers=headers)
    assert answer.status_code == 415
    assert error_of(answer)["code"] == "unsupported_media_type"


def test_json_with_a_charset_is_json(http: httpx.Client) -> None:
    headers = {"content-type": 'Application/JSON; charset="UTF-8"'}
    body = json.dumps(chat_body()).encode()
    assert http.post("/v1/chat/completions", content=body, headers=headers).status_code == 200


def test_a_declared_length_above_the_limit_is_413(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", content=b" " * (LIMIT + 1), headers=JSON)
    assert answer.status_code == 413
    assert "--max-body-bytes" in (error_of(answer)["message"] or "")


def test_a_streamed_body_is_counted(http: httpx.Client) -> None:
    pieces = (b" " * 1000 for _ in range(5))
    answer = http.post("/v1/chat/completions", content=pieces, headers=JSON)
    assert answer.status_code == 413
    exact = json.dumps(chat_body()).encode().ljust(LIMIT)
    halves = iter([exact[:100], exact[100:]])
    assert http.post("/v1/chat/completions", content=halves, headers=JSON).status_code == 200


def test_the_content_type_is_checked_before_the_size(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", content=b" " * (LIMIT + 1))
    assert answer.status_code == 415


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nul", b'{"model": "x"} y', b"\xff", b'{"a": NaN}', b"[" * 3000]
)
def test_what_is_not_json_is_400(http: httpx.Client, body: bytes) -> None:
    answer = http.post("/v1/completions", content=body, headers=JSON)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "invalid_json"


@pytest.mark.parametrize("given", ["abc", "A-1._z", "x" * 128])
def test_a_sane_request_id_comes_back(http: httpx.Client, given: str) -> None:
    assert http.get("/health", headers={"x-request-id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "ä", "a;b"])
def test_another_request_id_is_replaced(http: httpx.Client, given: str) -> None:
    answer = http.get("/health", headers=[(b"x-request-id", given.encode("latin-1"))])
    assert answer.headers["x-request-id"].startswith("req-")


def test_the_request_id_is_in_the_first_chunk_and_in_errors(http: httpx.Client) -> None:
    headers = {"x-request-id": "mine-7"}
    answer = http.post("/v1/completions", json=completion_body(stream=True), headers=headers)
    first, *others = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert answer.headers["x-request-id"] == first["request_id"] == "mine-7"
    assert all("request_id" not in chunk for chunk in others)
    assert http.get("/v1/nope", headers=headers).headers["x-request-id"] == "mine-7"


def test_browsers_of_a_configured_origin_may_call(http: httpx.Client) -> None:
    origin = {"origin": "https://app.example"}
    answer = http.get("/v1/models", headers=origin)
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert answer.headers["vary"] == "Origin"
    for refused in (http.get("/nope", headers=origin), http.get("/v1/completions", headers=origin)):
        assert refused.status_code in {404, 405}
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
    preflight = http.options(
        "/v1/chat/completions",
        headers={
            **origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, x-stainless-os",
        },
    )
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert preflight.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
    assert "POST" in preflight.headers["access-control-allow-methods"]


def test_browsers_of_another_origin_may_not(http: httpx.Client) -> None:
    origin = {"origin": "https://evil.example"}
    assert "access-control-allow-origin" not in http.get("/v1/models", headers=origin).headers
    preflight = http.options(
        "/v1/chat/completions", headers={**origin, "access-control-request-method": "POST"}
    )
    assert preflight.status_code == 403
    assert error_of(preflight)["code"] == "origin_not_allowed"


def test_without_cors_options_a_preflight_is_refused() -> None:
    with running_server() as running, running.client() as client:
        headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
        answer = client.options("/v1/chat/completions", headers=headers)
        assert answer.status_code == 405
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_one_log_line_a_request_without_any_text(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="ferrite"):
        http.post(
            "/v1/completions?secret=in-query",
            json=completion_body("my secret prompt"),
            headers={"x-request-id": "logged"},
        )
        eventually(lambda: "request" in caplog.messages)
    (record,) = [record for record in caplog.records if record.getMessage() == "request"]
    fields = record.__dict__["fields"]
    assert fields["request_id"] == "logged"
    assert (fields["method"], fields["path"], fields["status"]) == ("POST", "/v1/completions", 200)
    assert (fields["prompt_tokens"], fields["completion_tokens"]) == (len("my secret prompt"), 3)
    assert fields["finish_reason"] == "stop"
    assert "secret" not in str(fields)


def test_a_fault_nobody_foresaw_is_a_vague_500(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json=chat_body("break"))
    assert answer.status_code == 500
    assert error_of(answer)["type"] == "server_error"
    assert "kept secret" not in answer.text
    assert http.post("/v1/chat/completions", json=chat_body()).status_code == 200


def test_an_error_answer_is_openais_object() -> None:
    error = ApiError(400, "why", param="a[0].b", code="c")
    assert json.loads(error.encode()) == {
        "error": {"message": "why", "type": "invalid_request_error", "param": "a[0].b", "code": "c"}
    }
