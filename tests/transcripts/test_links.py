"""Symlinks among session files: people keep an agent's directory elsewhere, and agents could make one that leads anywhere."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import fsspec
import pytest

from tests.transcripts.homes import ASKED, HOMES, claude_code, lines
from workbench.transcripts import (
    AgentHome,
    FsspecPlatform,
    LinePointer,
    LocalPlatform,
    ReadFailed,
    SessionHead,
    SessionListFailure,
    SessionRef,
    Transcript,
    find_adapter,
    is_session_head,
    read_original,
)

Item = SessionHead | SessionListFailure
Platform = LocalPlatform | FsspecPlatform


def found(agent: str, home: Path, platform: Platform | None = None) -> list[Item]:
    """What a listing of a home tells."""
    adapter, host = find_adapter(agent), platform or LocalPlatform()

    async def read() -> list[Item]:
        roots = adapter.roots(AgentHome((str(home),)))
        return [item for root in roots async for item in adapter.discover(host, root)]

    return anyio.run(read)


def refused(items: list[Item]) -> set[str]:
    """The links that a listing says it didn't follow."""
    errors = [item.error for item in items if isinstance(item, SessionListFailure)]
    return {x.path for x in errors if isinstance(x, ReadFailed) and x.errno == errno.ELOOP and "link" in x.message}


@pytest.mark.parametrize("agent", sorted(HOMES))
def test_an_agent_s_directory_may_be_kept_elsewhere(agent: str, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    HOMES[agent](tmp_path / "home")
    (direct,) = filter(is_session_head, found(agent, tmp_path / "home"))
    shutil.move(tmp_path / "home", tmp_path / "disk")
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    roots = [Path(root) for root in find_adapter(agent).roots(AgentHome((str(tmp_path / "home"),)))]
    for root in {root for root in roots if root != tmp_path / "home" and root.is_dir()}:
        shutil.move(root, tmp_path / f"its-{root.name}")
        root.symlink_to(tmp_path / f"its-{root.name}")
    (linked,) = filter(is_session_head, found(agent, tmp_path / "home"))
    assert linked == direct


@pytest.mark.parametrize("agent", sorted(HOMES))
def test_a_file_that_a_link_leads_to_is_no_session(agent: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    HOMES[agent](tmp_path / "elsewhere")
    paths = [path for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()]
    for path in paths:
        link = tmp_path / "home" / path.relative_to(tmp_path / "elsewhere")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    items = found(agent, tmp_path / "home")
    assert not any(map(is_session_head, items))
    if agent not in ("crush", "workbench"):  # what lists those of the one isn't read either; the other's are ours
        assert refused(items)


@pytest.mark.parametrize("agent", sorted(HOMES))
def test_a_directory_below_an_agent_s_isn_t_looked_for_elsewhere(agent: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    HOMES[agent](tmp_path / "elsewhere")
    roots = find_adapter(agent).roots(AgentHome((str(tmp_path / "home"),)))
    linked = set()
    for root in map(Path, roots):
        real = tmp_path / "elsewhere" / root.relative_to(tmp_path / "home")
        for below in real.iterdir() if real.is_dir() else ():
            if below.is_dir() and str(root / below.name) not in roots:
                root.mkdir(parents=True, exist_ok=True)
                (root / below.name).symlink_to(below)
                linked.add(str(root / below.name))
    if not linked:
        pytest.skip("its sessions are in no directory below its own")
    items = found(agent, tmp_path / "home")
    assert not any(map(is_session_head, items))
    assert refused(items) <= linked


def test_a_link_out_is_told_and_one_to_what_is_listed_anyway_isn_t(tmp_path: Path) -> None:
    claude_code(tmp_path)
    projects = tmp_path / "projects"
    (projects / "-work-renamed").symlink_to("-work-project")
    (projects / "loop").symlink_to(".")
    (projects / "-work-out").symlink_to(tmp_path)
    items = found("claude-code", tmp_path)
    assert [item.first_prompt for item in items if is_session_head(item)] == [ASKED]
    assert refused(items) == {str(projects / "-work-out")}


@pytest.mark.parametrize("agent", sorted(HOMES))
def test_a_link_where_no_session_would_be_is_nothing_to_tell_of(agent: str, tmp_path: Path) -> None:
    """A project that Aider works in may have any, and so may the directories of other agents' other things."""
    home = tmp_path / "home"
    home.mkdir()
    HOMES[agent](home)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "notes.txt").touch()
    adapter = find_adapter(agent)
    roots = [Path(root) for root in adapter.roots(AgentHome((str(home),)))]
    for root in {root for root in roots if root.is_dir()}:
        (root / "notes.txt").symlink_to(tmp_path / "elsewhere" / "notes.txt")
        if getattr(adapter, "depth", 12) == 0 or agent == "opencode":
            (root / "node_modules").symlink_to(tmp_path / "elsewhere")
    items = found(agent, home)
    assert sum(map(is_session_head, items)) == 1
    assert refused(items) == set()


def _subagent(folder: Path) -> None:
    told = {"type": "user", "isSidechain": True, "sessionId": "c1", "message": {"content": "a subagent's task"}}
    lines(folder / "agent-a.jsonl", told)


def _link_file(session: Path, elsewhere: Path) -> None:
    _subagent(elsewhere)
    (session / "subagents").mkdir(parents=True)
    (session / "subagents" / "agent-a.jsonl").symlink_to(elsewhere / "agent-a.jsonl")


def _link_folder(session: Path, elsewhere: Path) -> None:
    _subagent(elsewhere)
    session.mkdir(exist_ok=True)
    (session / "subagents").symlink_to(elsewhere)


def _link_session(session: Path, elsewhere: Path) -> None:
    _subagent(elsewhere / "subagents")
    session.symlink_to(elsewhere)


def _link_beside(session: Path, elsewhere: Path) -> None:
    _subagent(elsewhere)
    (session.parent / "agent-a.jsonl").symlink_to(elsewhere / "agent-a.jsonl")


@pytest.mark.parametrize("link", [_link_file, _link_folder, _link_session, _link_beside])
def test_a_session_is_loaded_without_what_a_link_beside_it_leads_to(
    link: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    claude_code(tmp_path / "home")
    path = tmp_path / "home" / "projects" / "-work-project" / "c1.jsonl"
    link(path.with_suffix(""), tmp_path / "elsewhere")
    loaded = anyio.run(find_adapter("claude").load, LocalPlatform(), SessionRef(agent="claude-code", path=str(path)))
    assert isinstance(loaded, Transcript)
    assert loaded.events
    assert not any("subagent" in event.text for event in loaded.events)
    assert len(loaded.lanes) == 1


def test_a_record_isn_t_read_back_through_a_link_that_took_its_file_s_place(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"token":"x"}')
    path = tmp_path / "s.jsonl"
    path.symlink_to(secret)
    pointer = LinePointer(path=str(path), offset=0, length=13)
    for platform in (LocalPlatform(), FsspecPlatform(fsspec.filesystem("file"))):
        original = anyio.run(read_original, platform, pointer)
        assert isinstance(original, ReadFailed)
        assert original.errno == errno.ELOOP


def test_a_filesystem_that_knows_of_links_follows_none_either(tmp_path: Path) -> None:
    claude_code(tmp_path / "elsewhere")
    projects = tmp_path / "home" / "projects"
    projects.mkdir(parents=True)
    (projects / "p").symlink_to(tmp_path / "elsewhere" / "projects" / "-work-project")
    (projects / "nothing").symlink_to(tmp_path / "nothing")
    (projects / "q").mkdir()
    (projects / "q" / "c1.jsonl").symlink_to(tmp_path / "elsewhere" / "projects" / "-work-project" / "c1.jsonl")
    items = found("claude-code", tmp_path / "home", FsspecPlatform(fsspec.filesystem("file")))
    assert not any(map(is_session_head, items))
    assert refused(items) == {str(projects / "p"), str(projects / "q" / "c1.jsonl")}


def test_a_name_that_no_file_can_have_is_one_that_isn_t_there(tmp_path: Path) -> None:
    async def read() -> None:
        for name in ("a\0b", "\ud800"):
            for call in (LocalPlatform().fs.stat, LocalPlatform().fs.list, LocalPlatform().fs.read):
                with pytest.raises(FileNotFoundError):
                    await call(os.path.join(tmp_path, name))

    anyio.run(read)
