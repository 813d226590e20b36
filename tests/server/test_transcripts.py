"""`/v1/transcripts`: what the command line tells, over HTTP, bit by bit, and no longer than somebody listens."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx
import pytest

from tests.server.served import TOKEN, Served, parsed, serving
from tests.transcripts.homes import ANSWERED, ASKED, HOMES, T0, WHERE, claude_code, lines
from tests.waiting import wait_until
from workbench.server.library import Library, Progress, UsageReport, Wanted
from workbench.server.transcripts import SearchReport, SessionsPage
from workbench.transcripts import LocalPlatform, SessionHead, Transcript, find_adapter
from workbench.transcripts.exporting import to_html, to_markdown
from workbench.transcripts.paging import TranscriptPage
from workbench.transcripts.platform import SessionEntry, SessionStat


def listed(served: Served, **params: object) -> dict[str, Any]:
    found = served.told("/v1/transcripts", **params)
    assert SessionsPage.model_validate(found).model_dump(mode="json") == found
    return found  # type: ignore[return-value]


def agents(found: Mapping[str, Any]) -> set[str]:
    return {session["ref"]["agent"] for session in found["sessions"]}


def test_the_sessions_of_every_agent_are_listed_the_newest_first(served: Served) -> None:
    found = listed(served)
    assert agents(found) == set(HOMES)
    times = [datetime.fromisoformat(session["last_active_at"]) for session in found["sessions"]]
    assert times == sorted(times, reverse=True)
    assert found["next_cursor"] is None


def test_a_listing_in_parts_is_the_whole_listing(served: Served) -> None:
    whole = listed(served)["sessions"]
    found: list[Any] = []
    cursor: dict[str, object] = {}
    while True:
        part = listed(served, limit=3, **cursor)
        assert 0 < len(part["sessions"]) <= 3
        found += part["sessions"]
        if part["next_cursor"] is None:
            break
        cursor = {"cursor": part["next_cursor"]}
    assert found == whole


def test_a_listing_is_filtered_by_agent_project_and_day(served: Served) -> None:
    assert agents(listed(served, agent=["claude", "codex"])) == {"claude-code", "codex"}
    assert {session["cwd"] for session in listed(served, project="/work")["sessions"]} == {WHERE}
    assert listed(served, project="/work/proj")["sessions"] == []
    assert agents(listed(served, since="2026-03-01", agent="codex")) == {"codex"}
    assert listed(served, since="2026-03-02", agent="codex")["sessions"] == []


def test_what_makes_no_sense_is_refused_by_its_name(served: Served) -> None:
    for params, name in (
        ({"limit": 0}, "limit: "),
        ({"limit": "many"}, "limit: "),
        ({"since": "yesterday"}, "since: "),
        ({"project": "somewhere"}, "project: "),
        ({"cursor": "x"}, "cursor: "),
        ({"cursor": "é"}, "cursor: "),
        ({"cursor": base64.urlsafe_b64encode(b"[" * 20_000).decode()}, "cursor: "),
        ({"since": "0001-01-01T00:00:00+14:00"}, "since: "),
        ({"since": "9999-12-31T23:59:59-14:00"}, "since: "),
    ):
        error = served.refused("/v1/transcripts", 422, **params)
        assert error["code"] == "invalid_options"
        assert error["message"].startswith(name)
    for path in ("/v1/transcripts?agent=nobody", "/v1/transcripts/nobody/x"):
        assert served.refused(path, 422)["code"] == "capability_unsupported"
    assert served.refused("/v1/transcripts/search", 422)["message"].startswith("text: ")
    assert served.refused("/v1/transcripts/search?text=%20", 422)["message"].startswith("text: ")
    assert served.refused("/v1/transcripts/usage?by=colour", 422)["message"].startswith("by: ")
    assert served.refused("/v1/transcripts/codex/x1?cursor=x", 422)["message"].startswith("cursor: ")
    assert served.refused("/v1/transcripts/codex/x1/export?format=pdf", 422)["message"].startswith("format: ")
    assert served.refused("/v1/transcripts/codex/nobody", 404)["code"] == "session_not_found"
    assert served.refused("/v1/elsewhere", 404)["code"] == "not_found"


def test_a_listing_is_streamed_as_it_is_found(served: Served) -> None:
    events = served.events("/v1/transcripts")
    heads = [SessionHead.model_validate_json(data) for name, data in events if name == "session"]
    assert {head.ref.agent for head in heads} == set(HOMES)
    assert {name for name, _ in events} == {"session", "failure", "progress", "end"}
    assert events[-1][0] == "end"
    told = Progress.model_validate_json(next(data for name, data in reversed(events) if name == "progress"))
    assert told.done == told.total == len(heads)
    response = served.client.get("/v1/transcripts?agent=nobody", headers={"accept": "text/event-stream"})
    assert response.status_code == 422


@pytest.mark.parametrize("agent", HOMES)
def test_a_session_of_each_agent_is_shown_searched_counted_and_exported(
    served: Served, platform: LocalPlatform, agent: str
) -> None:
    [head] = listed(served, agent=agent)["sessions"]
    assert head["first_prompt"] in (ASKED, None)
    for name in (head["ref"]["session_id"] or head["ref"]["path"], head["ref"]["path"]):
        found = served.told(f"/v1/transcripts/{agent}/{quote(name, safe='')}")
        page = TranscriptPage.model_validate(found)
        assert page.model_dump(mode="json") == found
        assert [event.text for event in page.events if event.kind == "prompt"] == [ASKED]
        assert [event.text for event in page.events if event.kind == "reply"] == [ANSWERED]
    matches = SearchReport.model_validate(served.told("/v1/transcripts/search", text="FIX the", agent=agent)).matches
    assert [match.event.text for match in matches] == [ASKED]

    async def whole() -> Transcript:
        adapter = find_adapter(agent)
        transcript = await adapter.load(platform, SessionHead.model_validate(head).ref)
        assert isinstance(transcript, Transcript)
        return transcript

    transcript = anyio.run(whole)
    usage = UsageReport.model_validate(served.told("/v1/transcripts/usage", by="agent", agent=agent))
    assert usage.total.requests == len(transcript.requests)
    for form, made in (("markdown", to_markdown), ("html", to_html)):
        response = served.get(f"/v1/transcripts/{agent}/{quote(name, safe='')}/export", params={"format": form})
        assert response.text == made(transcript)
        assert response.headers["content-type"].startswith(f"text/{form}")
        assert response.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in response.headers["content-security-policy"]


def test_real_sessions_are_read(samples: Path, tmp_path: Path) -> None:
    projects = tmp_path / ".claude" / "projects" / "p"
    projects.mkdir(parents=True)
    for number, path in enumerate(sorted((samples / "claude_code").rglob("*.jsonl"))):
        (projects / f"{number}.jsonl").write_bytes(path.read_bytes())
    with serving(LocalPlatform(env={}, home=str(tmp_path))) as served:
        heads = listed(served, agent="claude-code", limit=1000)["sessions"]
        assert len(heads) > 5
        for head in heads:
            served.told(f"/v1/transcripts/claude-code/{head['ref']['path']}", limit=20)
        usage = UsageReport.model_validate(served.told("/v1/transcripts/usage", by="model"))
        assert usage.total.requests > 100


@pytest.mark.parametrize("by", ["day", "model", "project", "agent"])
def test_usage_is_added_up_and_its_progress_told(served: Served, by: str) -> None:
    report = UsageReport.model_validate(served.told("/v1/transcripts/usage", by=by))
    assert report.rows
    assert report.total.requests == sum(row.requests for row in report.rows)
    events = served.events("/v1/transcripts/usage", by=by)
    assert [name for name, _ in events[-2:]] == ["usage", "end"]
    assert UsageReport.model_validate_json(events[-2][1]) == report
    assert any(name == "progress" for name, _ in events)
    assert UsageReport.model_validate(served.told("/v1/transcripts/usage", until="2000-01-01")).total.requests == 0


def test_a_search_ends_once_enough_is_found(served: Served) -> None:
    found = SearchReport.model_validate(served.told("/v1/transcripts/search", text=ASKED, limit=2))
    assert len(found.matches) == 2
    events = served.events("/v1/transcripts/search", text=ASKED)
    assert sum(name == "match" for name, _ in events) >= len(HOMES)


def test_several_sessions_of_one_id_are_told_apart_by_their_files(tmp_path: Path) -> None:
    claude_code(tmp_path / ".claude")
    original = tmp_path / ".claude" / "projects" / "-work-project" / "c1.jsonl"
    (original.parent.parent / "copy").mkdir()
    (original.parent.parent / "copy" / "c1.jsonl").write_bytes(original.read_bytes())
    with serving(LocalPlatform(env={}, home=str(tmp_path))) as served:
        error = served.refused("/v1/transcripts/claude-code/c1", 409)
        assert (error["code"], str(original) in error["hint"]) == ("session_ambiguous", True)
        assert served.told(f"/v1/transcripts/claude-code/{original}")


def test_only_files_that_are_listed_can_be_read(served: Served, tmp_path: Path) -> None:
    claude_code(tmp_path)
    path = next(tmp_path.rglob("*.jsonl"))
    for named in (str(path), "/etc/passwd", "../../../etc/passwd", "%2Fetc%2Fpasswd"):
        assert served.refused(f"/v1/transcripts/claude-code/{named}", 404)["code"] in ("session_not_found", "not_found")


def test_a_session_is_found_whoever_else_looks_for_one_meanwhile(many: LocalPlatform) -> None:
    held = Held(many, free=100)

    async def look() -> None:
        [first, *_] = [item async for item in Library(many).heads(Wanted()) if isinstance(item, SessionHead)]
        library = Library(held)  # type: ignore[arg-type]
        async with anyio.create_task_group() as tasks:

            async def another() -> None:
                with anyio.CancelScope() as scope:
                    tasks.start_soon(leave_again, scope)
                    await library.page("claude-code", "s199", None, 1)

            async def leave_again(scope: anyio.CancelScope) -> None:
                await anyio.to_thread.run_sync(wait_until, lambda: held.begun > begun, "another one reads")
                scope.cancel()
                held.go.set()

            async def wanted() -> None:
                page = await library.page("claude-code", first.ref.session_id or "", None, 1)
                assert page.session_id == first.ref.session_id

            tasks.start_soon(wanted)
            await anyio.to_thread.run_sync(wait_until, lambda: held.begun > held.free, "the half was listed")
            begun = held.begun
            tasks.start_soon(another)

    anyio.run(look)


def test_a_session_that_went_away_or_can_t_be_read_is_an_error_of_its_own(tmp_path: Path) -> None:
    claude_code(tmp_path / ".claude")
    path = next(tmp_path.rglob("c1.jsonl"))
    with serving(LocalPlatform(env={}, home=str(tmp_path))) as served:
        assert served.told("/v1/transcripts/claude-code/c1")
        path.unlink()
        assert served.refused("/v1/transcripts/claude-code/c1", 404)["code"] == "session_not_found"
        claude_code(tmp_path / ".claude")
        assert served.told("/v1/transcripts/claude-code/c1")
        damaged = tmp_path / ".codex" / "sessions" / "rollout-2026-03-02T10-00-00-z.jsonl.zst"
        damaged.parent.mkdir(parents=True)
        damaged.write_bytes(b"\x28\xb5\x2f\xfd" + b"damaged" * 20)
        failures = [each for each in listed(served)["failures"] if each["error"]["_tag"] != "RootMissing"]
        assert [failure["error"]["path"] for failure in failures] == [str(damaged)]


def test_a_root_that_vanished_is_a_value_of_the_listing(tmp_path: Path) -> None:
    claude_code(tmp_path / ".claude")
    with serving(LocalPlatform(env={}, home=str(tmp_path))) as served:
        assert agents(listed(served)) == {"claude-code"}
        (tmp_path / ".claude").rename(tmp_path / "elsewhere")
        found = listed(served, agent="claude-code")
        assert found["sessions"] == []
        missing = {each["error"]["path"] for each in found["failures"] if each["error"]["_tag"] == "RootMissing"}
        assert str(tmp_path / ".claude" / "projects") in missing
        assert served.told("/v1/transcripts/usage")


def test_a_text_that_is_none_is_answered_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / ".claude" / "projects" / "p"
    record = {
        "type": "user",
        "sessionId": "s",
        "cwd": "/\udc80",
        "timestamp": T0,
        "message": {"content": "\ud800 x \x00"},
    }
    lines(folder / "s.jsonl", record)
    (folder / "odd\udc80.jsonl").write_bytes((folder / "s.jsonl").read_bytes().replace(b'"s"', b'"odd"'))
    with serving(LocalPlatform(env={}, home=str(tmp_path))) as served:
        heads = listed(served, agent="claude")["sessions"]
        assert {head["ref"]["session_id"] for head in heads} == {"s", "odd\ufffd"}
        for name in ("s", "odd\ufffd", *(head["ref"]["path"] for head in heads)):
            assert served.told(f"/v1/transcripts/claude-code/{name}")
            assert served.get(f"/v1/transcripts/claude-code/{name}/export").status_code == 200
        assert len(SearchReport.model_validate(served.told("/v1/transcripts/search", text="x")).matches) == 2
        assert served.events("/v1/transcripts")[-1][0] == "end"


class Held:
    """A platform whose reads wait to be let go, and are counted."""

    def __init__(self, platform: LocalPlatform, *, free: int = 0) -> None:
        self.env, self.home = platform.env, platform.home
        self.decompress, self.sqlite = platform.decompress, platform.sqlite
        self._files = platform.fs
        self.fs = self
        self.begun = 0
        self.lists: list[str] = []
        self.free = free
        self.go = threading.Event()

    async def stat(self, path: str) -> SessionStat:
        return await self._files.stat(path)

    async def list(self, path: str) -> tuple[SessionEntry, ...]:
        self.lists.append(path)
        return await self._files.list(path)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        self.begun += 1
        if self.begun > self.free:
            await anyio.to_thread.run_sync(self.go.wait, abandon_on_cancel=True)
        return await self._files.read(path, offset=offset, length=length)


@pytest.fixture
def many(tmp_path: Path) -> LocalPlatform:
    """A user with many sessions."""
    for number in range(200):
        record = {"type": "user", "sessionId": f"s{number}", "timestamp": T0, "message": {"content": ASKED}}
        lines(tmp_path / ".claude" / "projects" / "p" / f"s{number}.jsonl", record)
    return LocalPlatform(env={}, home=str(tmp_path))


PATHS = ("/v1/transcripts", "/v1/transcripts/search?text=x", "/v1/transcripts/usage", "/v1/transcripts/claude/nobody")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_who_goes_away_stops_the_reads(many: LocalPlatform, path: str, accept: str) -> None:
    held = Held(many)
    with serving(held) as served:  # type: ignore[arg-type]
        leave(served, path, accept, held)
        # The server has seen it once it answers who asks after.
        assert served.told("/v1/health")
        held.go.set()
        assert served.told("/v1/health")
        assert held.begun == 1
        assert len(served.told("/v1/transcripts?limit=1000")["sessions"]) == 200  # type: ignore[call-overload]


@pytest.mark.parametrize("path", ["/v1/transcripts/search?text=nowhere", "/v1/transcripts/usage"])
def test_a_directory_is_not_listed_for_each_of_its_sessions(many: LocalPlatform, path: str) -> None:
    folder = Path(many.home, ".claude", "projects", "p")
    # One that nobody writes in at this moment.
    os.utime(folder, (1_700_000_000, 1_700_000_000))
    held = Held(many, free=1_000_000)
    with serving(held) as served:  # type: ignore[arg-type]
        listed(served)
        held.lists.clear()
        assert served.told(path)
        # Those of the listing that it begins with, and of the first few that are read at the same time.
        assert held.lists.count(str(folder)) < 50


def leave(served: Served, path: str, accept: str, held: Held) -> None:
    """Ask, and close the connection once a read has begun."""
    asked = socket.create_connection(("127.0.0.1", served.client.base_url.port or 0))
    with asked:
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nAccept: {accept}\r\n\r\n"
        asked.sendall(head.encode())
        wait_until(lambda: held.begun, "a read has begun")


def test_who_reads_a_stream_has_the_first_sessions_while_the_rest_is_read(many: LocalPlatform) -> None:
    held = Held(many, free=5)
    with serving(held) as served:  # type: ignore[arg-type]
        headers = {"accept": "text/event-stream"}
        with served.client.stream("GET", "/v1/transcripts", headers=headers) as response:
            events = parsed(response.iter_lines())
            first = [next(events) for _ in range(5)]
            assert [name for name, _ in first] == ["session"] * 5
            held.go.set()
            assert sum(name == "session" for name, _ in events) == 195


@pytest.mark.parametrize("path", PATHS)
def test_a_listing_that_takes_long_is_in_nobody_s_way(many: LocalPlatform, path: str) -> None:
    held = Held(many)
    with serving(held) as served:  # type: ignore[arg-type]
        slow = threading.Thread(target=served.get, args=(path,))
        slow.start()
        try:
            wait_until(lambda: held.begun, "a read has begun")
            assert served.stranger.get("/v1/health").json() == {"status": "ok"}
            assert served.stranger.get("/").status_code == 200
            assert served.get("/v1/nothing").status_code == 404
            assert slow.is_alive()
        finally:
            held.go.set()
            slow.join()


def test_who_doesn_t_read_a_stream_holds_up_nothing_and_fills_no_memory(tmp_path: Path) -> None:
    long = "/work" + "/deeper" * 6_000
    for number in range(300):
        record = {
            "type": "user",
            "sessionId": f"s{number}",
            "timestamp": T0,
            "cwd": long,
            "message": {"content": ASKED},
        }
        lines(tmp_path / ".claude" / "projects" / "p" / f"s{number}.jsonl", record)
    held = Held(LocalPlatform(env={}, home=str(tmp_path)), free=1_000_000)
    with serving(held) as served, socket.socket() as idle:  # type: ignore[arg-type]
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        address = httpx.URL(served.url)
        idle.connect((address.host, address.port))
        head = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\nAccept: text/event-stream\r\n\r\n"
        idle.sendall(f"GET /v1/transcripts?agent=claude HTTP/1.1\r\n{head}".encode())
        wait_until(lambda: held.begun > 0, "the listing that nobody reads has begun")
        for _ in range(3):
            assert len(listed(served, agent="claude", limit=1000)["sessions"]) == 300
        # More than the system's buffers hold isn't made for it.
        assert held.begun < 4 * 300


def test_an_error_that_nobody_expected_is_said_and_its_stack_stays_here(
    many: LocalPlatform, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Held):
        async def list(self, path: str) -> tuple[SessionEntry, ...]:
            raise ZeroDivisionError("a secret of the implementation")

    with serving(Broken(many)) as served:  # type: ignore[arg-type]
        assert served.refused("/v1/transcripts?agent=claude", 500)["code"] == "internal_error"
        assert "secret" not in served.get("/v1/transcripts?agent=claude").text
        events = served.events("/v1/transcripts", agent="claude")
        assert events[-1][0] == "error"
        assert json.loads(events[-1][1])["error"]["code"] == "internal_error"
        assert "secret" not in events[-1][1]
    assert "a secret of the implementation" in caplog.text


def test_the_openapi_document_has_every_route_and_what_it_answers(served: Served) -> None:
    document: Any = served.told("/v1/openapi.json")
    assert set(document["paths"]) == {
        "/v1/health",
        "/v1/transcripts",
        "/v1/transcripts/search",
        "/v1/transcripts/usage",
        "/v1/transcripts/{agent}/{id}",
        "/v1/transcripts/{agent}/{id}/export",
        "/v1/sessions",
        "/v1/sessions/{name}",
    }
    assert all(set(path) == {"get"} for path in document["paths"].values())
    models = document["components"]["schemas"]
    assert {"SessionsPage", "TranscriptPage", "UsageReport", "SearchReport", "SessionsReport", "ErrorReport"} <= set(
        models
    )
    assert document["components"]["securitySchemes"]
