"""Who is answered: with the token, under a name that is nobody else's, and only to be told something."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import httpx
import pytest

from tests.server.served import TOKEN, Served
from workbench.errors import StateError
from workbench.server.tokens import token_in

CLOSED = (
    "/v1/transcripts",
    "/v1/transcripts/search?text=x",
    "/v1/transcripts/usage",
    "/v1/transcripts/codex/x1",
    "/v1/transcripts/codex/x1/export",
    "/v1/sessions",
    "/v1/sessions/default",
    "/v1/nothing",
)
OPEN = ("/", "/page.js", "/page.css", "/v1/health", "/v1/openapi.json")


def ask(served: Served, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    """With these headers alone."""
    return served.stranger.request(method, path, headers=headers)


@pytest.mark.parametrize("path", CLOSED)
def test_nothing_is_told_without_the_token(served: Served, path: str) -> None:
    for said in ("", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", f"Basic {TOKEN}", "Bearer é"):
        response = served.stranger.get(path, headers={"authorization": said.encode()})
        assert (response.status_code, response.json()["error"]["code"]) == (401, "unauthorized"), said
        assert response.headers["www-authenticate"] == "Bearer"


def test_the_token_is_never_taken_from_the_address_or_a_cookie(served: Served) -> None:
    assert ask(served, f"/v1/sessions?token={TOKEN}&access_token={TOKEN}").status_code == 401
    assert ask(served, "/v1/sessions", cookie=f"token={TOKEN}").status_code == 401


@pytest.mark.parametrize("path", OPEN)
def test_what_is_the_same_for_everybody_is_told_to_everybody(served: Served, path: str) -> None:
    response = ask(served, path)
    assert response.status_code == 200
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize("path", [*OPEN, *CLOSED])
def test_another_site_s_name_is_refused_whatever_is_asked(served: Served, path: str) -> None:
    for host in ("example.com", "example.com:80", "127.0.0.1.example.com", "localhost.example.com", "1.2.3.4.x", ""):
        response = ask(served, path, host=host, authorization=f"Bearer {TOKEN}")
        assert (response.status_code, response.json()["error"]["code"]) == (421, "host_refused"), host


def test_an_address_and_localhost_are_names_of_ours(served: Served) -> None:
    for host in ("127.0.0.1", "127.0.0.1:1", "127.0.0.1:", "localhost", "LOCALHOST:80", "localhost:", "[::1]:80", "[::1]:",
                 "[::1]", "::1"):  # fmt: skip
        assert ask(served, "/v1/health", host=host).status_code == 200, host


@pytest.mark.parametrize("path", [*OPEN, *CLOSED, "/v1/transcripts?limit=none"])
def test_a_head_tells_what_a_get_would_without_its_body(served: Served, path: str) -> None:
    for given in ({}, {"accept": "text/event-stream"}):
        head = ask(served, path, "HEAD", authorization=f"Bearer {TOKEN}", **given)
        get = ask(served, path, authorization=f"Bearer {TOKEN}")
        assert (head.status_code, head.content) == (get.status_code, b"")
        told = ("content-type", "content-length", "content-security-policy", "cache-control")
        assert [head.headers.get(name) for name in told] == [get.headers.get(name) for name in told]
    assert ask(served, path, "HEAD").status_code == ask(served, path).status_code


def said(served: Served, target: str, host: str) -> bytes:
    """The answer to a request as a proxy sends it."""
    address = httpx.URL(served.url)
    with socket.create_connection((address.host, address.port)) as connection:
        told = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
        connection.sendall(told.encode())
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_a_request_may_name_its_target_by_a_whole_address_whose_host_counts(served: Served) -> None:
    for target in ("/v1/health", "/v1/transcripts?limit=1", "/v1/transcripts/codex/a%2Fb", "/?x=1"):
        whole, own = said(served, f"{served.url}{target}", "127.0.0.1"), said(served, target, "127.0.0.1")
        assert whole.partition(b"\r\n\r\n")[2] == own.partition(b"\r\n\r\n")[2]
        assert whole.split(b" ")[1] == (b"404" if "%2F" in target else b"200")
    for target in ("", "?x=1"):
        assert said(served, f"{served.url}{target}", "127.0.0.1").split(b" ")[1] == b"200"
    for target, host in (("http://example.com/v1/health", "127.0.0.1"), ("http:///v1/health", "127.0.0.1")):
        assert said(served, target, host).split(b" ")[1] == b"421"
    assert said(served, f"{served.url}/v1/health", "example.com").split(b" ")[1] == b"200"


@pytest.mark.parametrize("path", [*OPEN[:1], *OPEN[3:], *CLOSED[:-1]])
def test_nothing_can_be_changed(served: Served, path: str) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        response = ask(served, path, method, authorization=f"Bearer {TOKEN}")
        assert (response.status_code, response.json()["error"]["code"]) == (405, "method_not_allowed")
        assert "access-control-allow-origin" not in response.headers


def test_a_page_of_another_site_may_not_even_try(served: Served) -> None:
    known = f"Bearer {TOKEN}"
    for origin in ("http://example.com", "null", "http://127.0.0.1:1"):
        response = ask(served, "/v1/sessions", "POST", authorization=known, origin=origin)
        assert (response.status_code, response.json()["error"]["code"]) == (403, "origin_refused")
    assert ask(served, "/v1/sessions", "POST", authorization=known, origin=served.url).status_code == 405


def test_every_answer_says_what_a_browser_may_do_with_it(served: Served) -> None:
    for path in ("/", "/page.js", "/v1/health", "/v1/transcripts", "/v1/nothing"):
        headers = ask(served, path, authorization=f"Bearer {TOKEN}").headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = token_in(str(path))
    assert len(token) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_in(str(path)) == token
    assert [each.name for each in tmp_path.iterdir()] == ["token"]
    assert token_in(str(tmp_path / "other")) != token


def test_a_token_file_that_others_can_read_or_replace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token_in(str(path))
    path.chmod(0o640)
    with pytest.raises(StateError) as raised:
        token_in(str(path))
    assert raised.value.code == "state_forbidden"
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, what in (("link", "link"), ("dangling", "link"), ("directory", "directory"), ("pipe", "special")):
        with pytest.raises(StateError, match=what) as raised:
            token_in(str(tmp_path / name))
        assert (raised.value.code, bool(raised.value.hint)) == ("state_forbidden", True)
    assert not (tmp_path / "nothing").exists()
    path.write_text("short")
    with pytest.raises(StateError) as raised:
        token_in(str(path))
    assert raised.value.code == "state_corrupt"
