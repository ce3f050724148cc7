"""The key protects whole prefixes, before anything of the body is looked at."""

import re
import socket
from collections.abc import Iterator

import httpx
import pytest

from ferrite.api.auth import is_protected
from tests.api.support import Running, Script, chat_body, running_server

KEY = "k1-secret"
PROTECTED = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/maker/tiny-model"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/tokenize"),
    ("POST", "/v1/detokenize"),
    ("GET", "/v1/stats"),
    ("GET", "/v1/requests"),
    ("GET", "/admin/stats"),
    ("GET", "/v1/nope"),
    ("DELETE", "/v1/nope"),
    ("POST", "/admin/nope"),
    ("GET", "/v1"),
    ("GET", "/v1/chat/completions"),
    ("DELETE", "/v1/models"),
    ("POST", "/v1/stats"),
    ("PUT", "/admin/stats"),
    ("OPTIONS", "/v1/completions"),
]
OPEN = ["/health", "/metrics", "/", "/openapi.json"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(Script("ok").runner(), api_key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def anonymous(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, verify=False) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), PROTECTED)
@pytest.mark.parametrize(
    "authorization",
    [None, "Bearer wrong", "Bearer", "Bearer k1-secre", "Basic k1-secret", "k1-secret", "Bearer k1-secret x"],
)
def test_without_the_key_every_protected_path_is_401(
    anonymous: httpx.Client, method: str, path: str, authorization: str | None
) -> None:
    headers = {"authorization": authorization} if authorization else {}
    answer = anonymous.request(method, path, headers=headers, content=b"{not json")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "allow" not in answer.headers
    error = answer.json()["error"]
    assert (error["code"], error["type"], error["param"]) == (
        "invalid_api_key",
        "invalid_request_error",
        None,
    )


@pytest.mark.parametrize("authorization", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY}"])
def test_the_scheme_is_read_in_any_case(anonymous: httpx.Client, authorization: str) -> None:
    headers = {"authorization": authorization}
    assert anonymous.get("/v1/models", headers=headers).status_code == 200
    assert anonymous.get("/v1/nope", headers=headers).status_code == 404
    assert anonymous.delete("/v1/models", headers=headers).headers["allow"] == "GET, HEAD"
    answer = anonymous.post("/v1/chat/completions", headers=headers, json=chat_body())
    assert answer.json()["choices"][0]["message"]["content"] == "ok"


def test_two_authorization_headers_are_none(anonymous: httpx.Client) -> None:
    headers = [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer other")]
    assert anonymous.get("/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize("path", OPEN)
def test_the_open_routes_are_these(anonymous: httpx.Client, path: str) -> None:
    assert anonymous.get(path).status_code in {200, 501}


def test_the_router_has_no_other_open_route(server: Running) -> None:
    paths = {route.path for route in server.server.config.app.routes}  # type: ignore[union-attr]
    assert {path for path in paths if not is_protected(path)} == set(OPEN)


def test_a_large_malformed_body_without_the_key_is_401_and_the_connection_goes_on(server: Running) -> None:
    body = b"{" * (3 * 1024 * 1024)
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    with socket.create_connection((server.address.host, server.address.port), timeout=20) as connection:
        connection.sendall(head + body)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = b""
        while piece := connection.recv(65536):
            received += piece
    assert re.findall(rb"HTTP/1\.1 (\d+)", received) == [b"401", b"200"]
