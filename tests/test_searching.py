"""Search of a workspace with the help of ripgrep finds what a search without it finds."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench import Bench
from tests.needed import need_program
from tests.waiting import unmount
from workbench import searching
from workbench.errors import OptionsError
from workbench.protocol.commands import Command
from workbench.sandbox.client import KeeperClient
from workbench.vfs import ripgrep, search
from workbench.vfs.changed_mark import is_marked_changed
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.search import Matches
from workbench.workspace import Workspace

SEARCH_PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])


@pytest.fixture(scope="module")
def search_path() -> Iterator[None]:
    """With ripgrep on the search path: the one installed for development, or the system's."""
    need_program("rg", SEARCH_PATH)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", SEARCH_PATH)
        yield


@pytest.fixture
def workspace(search_path: None, state: Path, tmp_path: Path) -> Bench:
    (tmp_path / "real").mkdir()
    return Bench(tmp_path / "real")


# What is asked for


PLAIN = st.sampled_from([bytes((byte,)) for byte in b"abA_0 {}]-#&~\xff"] + ["é".encode()])
SETS = st.sampled_from(rb". \w \d \s \W \D \S \. \[ \x61 \xFF \-".split())
MEMBERS = st.lists(
    st.sampled_from([*rb"a b Z-a a-c \w \s - \] \- ^ & ~ .".split(), b"\xff", b"\x80-\xff"]), min_size=1, max_size=4
)
CLASSES = st.builds(
    lambda negated, members: b"[" + negated + b"".join(members) + b"]", st.sampled_from([b"", b"^"]), MEMBERS
)
REPEATS = st.sampled_from([b"*", b"+", b"?", b"*?", b"+?", b"??", b"{2}", b"{1,}", b"{0,2}", b"{,2}", b"*+"])
ATOMS = (
    PLAIN | SETS | CLASSES | st.sampled_from([b"^", b"$", rb"\b", rb"\B", rb"\A", rb"\Z", rb"\1", b"(?=a)", b"(?i:a)"])
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(lambda one, other: one + other, inner, inner),
        st.builds(lambda one, other: one + b"|" + other, inner, inner),
        st.builds(lambda opening, one: opening + one + b")", st.sampled_from([b"(", b"(?:"]), inner),
        st.builds(lambda one, repeat: one + repeat, inner, REPEATS),
    ),
    max_leaves=6,
)
PIECES = [
    *[b"a", b"b", b"A", b"ab", b"aab", b" ", b"_", b"{", b"]", b"-", b"#", b"0", b".", b"[", b"~", b"&", b"^", b"\t"],
    *[b"\n", b"\r\n", b"\r", "é".encode(), b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\0", b"z" * 9000, b"z" * (1 << 20)],
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=9).map(b"".join)


def matches_in(text: bytes, expression: re.Pattern[bytes]) -> bool:
    """Whether ours finds anything in a file, or calls it binary."""
    pieces = [piece[at : at + (1 << 20)] for piece in text.split(b"\n") for at in range(0, len(piece) or 1, 1 << 20)]
    return b"\0" in text[: 8 << 10] or (
        bool(text) and any(expression.search(piece.removesuffix(b"\r")) for piece in pieces)
    )


def compiled(pattern: bytes, ignore_case: bool) -> re.Pattern[bytes] | None:
    try:
        return search.compiled(pattern, ignore_case=ignore_case)
    except OptionsError:
        return None


@pytest.mark.usefixtures("search_path")
@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
@settings(max_examples=150, deadline=None)
@given(
    patterns=st.lists(PATTERNS, min_size=1, max_size=4),
    texts=st.lists(TEXTS, min_size=1, max_size=6),
    ignore_case=st.booleans(),
)
def test_ripgrep_names_every_file_in_which_ours_finds_anything(
    patterns: list[bytes], texts: list[bytes], ignore_case: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for number, text in enumerate(texts):
            (Path(directory) / str(number)).write_bytes(text)
        with LocalStorage(os.fsencode(directory)) as lower:
            for pattern in patterns:
                expression = compiled(pattern, ignore_case)
                asked = ripgrep.expression(pattern, literal=False, ignore_case=ignore_case)
                if expression is None or asked is None:
                    continue
                named = anyio.run(searching.on_host, lower, asked, b"", [])
                assert named is not None, (pattern, asked)
                for number, text in enumerate(texts):
                    assert str(number).encode() in named or not matches_in(text, expression), (
                        pattern,
                        asked,
                        text[:100],
                    )


@pytest.mark.parametrize(
    "pattern", [rb"def \w+\(", rb"^import (os|sys)$", b"TODO|FIXME", rb"[A-Z][a-z]+Error\b", rb"x{2,3}", "é+".encode()]
)
def test_common_patterns_are_ones_that_ripgrep_can_be_asked(pattern: bytes) -> None:
    assert ripgrep.expression(pattern, literal=False, ignore_case=False) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        rb"(a)\1",
        b"(?=a)",
        b"(?<!a)b",
        b"(?i)a",
        b"a*+",
        b"[^]a]",
        b"[[:alpha:]]",
        rb"\u00e9",
        rb"a\n",
        b"a{,2}",
        b"(?P<n>a)",
    ],
)
def test_ripgrep_is_not_asked_what_might_mean_something_else(pattern: bytes) -> None:
    assert ripgrep.expression(pattern, literal=False, ignore_case=False) is None
    assert ripgrep.expression(pattern, literal=True, ignore_case=False) is not None


# What is found


NAMES = st.sampled_from(
    [
        b"a",
        b"b",
        b".hidden",
        b"new\nline",
        b"\xff\xfe",
        b"-e",
        b"!x",
        b"build",
        b"_notes",
        b".git",
        b"a.log",
        b" ",
        b"*",
    ]
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
RULES = st.sampled_from([b"build\n", b"*.log\n!a.log\n", b"/a/\n", b"b/\n!b\n", b".*\n"])
CONTENTS = st.lists(
    st.sampled_from([b"hit", b"Hit", b"miss", b"\n", b"\r\n", b"\0", b"\xff\xfeh\0i\0t\0", b"\xff", b"z" * 9000]), max_size=6
).map(b"".join)  # fmt: skip
FILES = st.dictionaries(PATHS, CONTENTS, max_size=8)
IGNORING = st.dictionaries(st.sampled_from([b"", b"a", b"build"]), RULES, max_size=2)
STEPS = st.lists(st.tuples(st.sampled_from(["write", "remove", "link", "directory"]), PATHS, CONTENTS), max_size=5)
QUERIES = st.sampled_from([b"hit", b"^hit$", b"h.t", b"(hit|miss)", b"\xff", b"z{3}", b"", rb"\Bt"])


def lay_out(root: Path, files: dict[bytes, bytes]) -> None:
    for path, content in files.items():
        there = os.path.join(os.fsencode(root), path)
        try:
            os.makedirs(os.path.dirname(there), exist_ok=True)
            with open(there, "wb") as file:
                file.write(content)
        except OSError:
            # Another file is in its way.
            continue


def change(overlay: Overlay, step: tuple[str, bytes, bytes]) -> None:
    what, path, content = step
    try:
        overlay.makedirs(os.path.dirname(path), exist_ok=True)
        if what == "write":
            overlay.write_bytes(path, content)
        elif what == "directory":
            overlay.mkdir(path)
        else:
            overlay.remove_tree(path)
            if what == "link":
                overlay.symlink(b"/etc", path)
    except OSError:
        # There is something else.
        return


def both(bench: Bench, pattern: bytes, path: bytes = b"", **options: object) -> Matches:
    """What a search finds, with ripgrep's help; it's the same without."""
    helped: Matches = bench.do(lambda workspace: workspace.grep(pattern, path, **options))  # type: ignore[arg-type]
    alone = bench.do(
        lambda workspace: workspace._searching.look(partial(search.grep, pattern=pattern, path=path, **options))  # type: ignore[arg-type]
    )
    assert helped == alone
    return helped


@pytest.mark.usefixtures("search_path")
@settings(max_examples=60, deadline=None)
@given(
    files=FILES,
    ignoring=IGNORING,
    steps=STEPS,
    pattern=QUERIES,
    ignored=st.booleans(),
    ignore_case=st.booleans(),
    limit=st.integers(1, 4),
    below=st.sampled_from([b"", b"a", b"build", b"_notes"]),
    names=st.sampled_from([b"*", b"?", b"*.log"]),
)
def test_a_search_finds_the_same_with_ripgrep_and_without(
    files: dict[bytes, bytes],
    ignoring: dict[bytes, bytes],
    steps: list[tuple[str, bytes, bytes]],
    pattern: bytes,
    ignored: bool,
    ignore_case: bool,
    limit: int,
    below: bytes,
    names: bytes,
) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_STATE", os.path.join(directory, "state"))
        real = Path(directory) / "real"
        real.mkdir()
        lay_out(real, {os.path.join(path, b".gitignore"): rules for path, rules in ignoring.items()} | files)
        with contextlib.closing(Workspace.open(real)) as workspace, workspace._overlay.upper() as upper:
            overlay = Overlay(workspace.lower, upper)
            for step in steps:
                change(overlay, step)
            if overlay.kind(below) is None:
                below = b""
        options = {"ignored": ignored, "ignore_case": ignore_case, "limit": limit, "names": names}
        both(Bench(real), pattern, below, **options)


def tree_of_traps(root: Path) -> None:
    """Files with `needle`, and what a careless search would miss, follow, or wait for."""
    lay_out(
        root,
        {
            b"plain": b"needle\n",
            b"deep/er/plain": b"one\nneedle\n",
            b".hidden/file": b"needle\n",
            b"new\nline": b"needle\r\n",
            b"\xff\xfe": b"needle",
            b"-e": b"needle",
            b"utf-16": "needle\n".encode("utf-16"),
            b"late-nul": b"needle\n" + b"z" * 9000 + b"\0",
            b"early-nul": b"\0needle\n",
            b"long": b"z" * (2 << 20) + b"needle",
            b"ignored/file": b"needle",
            b".gitignore": b"/ignored/\n",
            b".ignore": b"*\n",
            b".rgignore": b"*\n",
            b".git/info/exclude": b"*\n",
        },
    )
    os.mkfifo(root / "fifo")
    os.symlink("/etc", root / "out")
    os.symlink("plain", root / "link")


FOUND = [b"-e", b"late-nul", b"long", b"new\nline", b"plain", b"\xff\xfe", b".hidden/file", b"deep/er/plain"]


def paths_of(found: Matches) -> list[bytes]:
    return [match.path for match in found.matches]


def test_nothing_is_missed_followed_or_waited_for(
    workspace: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("--glob=!plain\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "config"))
    root = Path(os.fsdecode(workspace.workspace))
    tree_of_traps(root)
    upper = Path(workspace.overlay) / "upper"
    os.mkfifo(upper / "upper-fifo")
    (upper / "made").write_bytes(b"needle")
    os.symlink(root, upper / "upper-link")
    found = both(workspace, b"needle")
    assert paths_of(found) == sorted([*FOUND[:6], b"made"]) + FOUND[6:]
    assert (found.binary, found.unread) == (2, ())
    assert paths_of(both(workspace, b"needle" * 50_000)) == []
    assert paths_of(both(workspace, b"needle", b"deep")) == [b"deep/er/plain"]
    assert paths_of(both(workspace, b"needle", b"ignored")) == [b"ignored/file"]
    assert b"ignored/file" in paths_of(both(workspace, b"needle", ignored=True))
    assert not both(workspace, b"needle", limit=3).complete


def test_ripgrep_is_asked_on_the_host_and_does_not_enter_ignored_directories(workspace: Bench) -> None:
    root = Path(os.fsdecode(workspace.workspace))
    tree_of_traps(root)

    async def ask(workspace: Workspace) -> tuple[set[bytes] | None, list[bytes]]:
        left_out = await workspace._searching.look(lambda view: search.ignored_directories(view, b""))
        asked = ripgrep.expression(b"needle", literal=True, ignore_case=False)
        assert asked is not None
        return await searching.on_host(workspace.lower, asked, b"", left_out), left_out

    named, left_out = workspace.do(ask)
    assert sorted(left_out) == [b".git", b"ignored"]
    assert named == {*FOUND, b"utf-16", b"early-nul"}


def test_a_program_of_that_name_inside_the_workspace_is_not_run(
    workspace: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(os.fsdecode(workspace.workspace))
    (root / "bin").mkdir()
    (root / "bin" / "rg").write_text(f"#!/bin/sh\ntouch {root}/ran\n")
    (root / "bin" / "rg").chmod(0o755)
    (root / "file").write_text("needle")
    for entry in (str(root / "bin"), "bin", ""):
        monkeypatch.setenv("PATH", os.pathsep.join([entry, os.environ["PATH"]]))
        monkeypatch.chdir(root)
        assert paths_of(both(workspace, b"needle")) == [b"file"]
    assert not (root / "ran").exists()


def test_where_ripgrep_fails_or_says_too_much_all_is_found(
    workspace: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = Path(os.fsdecode(workspace.workspace))
    tree_of_traps(root)
    for script in ("exit 2", "kill -9 $$", "yes", f"echo nothing; exec {shutil.which('sleep')} 1000"):
        (tmp_path / "rg").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "rg").chmod(0o755)
        monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
        monkeypatch.setattr(searching, "_SECONDS", 0.5)
        assert paths_of(both(workspace, b"needle")) == FOUND


@pytest.mark.root
def test_nothing_is_searched_below_a_mount_point(
    workspace: Bench, tmp_path: Path, mounted: Callable[[Path], None]
) -> None:
    root = Path(os.fsdecode(workspace.workspace))
    (root / "file").write_text("needle")
    (root / "mounted").mkdir()
    mounted(root / "mounted")
    (root / "mounted" / "file").write_text("needle")
    assert paths_of(both(workspace, b"needle")) == [b"file"]


@pytest.fixture
def mounted() -> Iterator[Callable[[Path], None]]:
    """Mounts a filesystem of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    made = []

    def mount(path: Path) -> None:
        if subprocess.run(["mount", "-t", "tmpfs", "none", path], check=False).returncode != 0:
            pytest.skip("this system doesn't let us mount")
        made.append(path)

    yield mount
    for path in made:
        unmount(path)


# In the sandbox


def test_in_a_warm_sandbox_the_same_is_found(engine: None, workspace: Bench) -> None:
    root = Path(os.fsdecode(workspace.workspace))
    tree_of_traps(root)
    workspace.sh(
        "mkfifo made-fifo; echo needle > made; rm plain; ln -s / root; mkdir .git/x; mkdir -p _notes; echo needle > _notes/n"
    )
    found = both(workspace, b"needle")
    assert paths_of(found) == sorted([b"made", *FOUND[:4], FOUND[5]]) + FOUND[6:]
    assert found.binary == 2
    assert paths_of(both(workspace, b"needle", b"deep")) == [b"deep/er/plain"]
    assert paths_of(both(workspace, b"needle", b"_notes")) == [b"_notes/n"]
    assert paths_of(both(workspace, b"ne{2}dle$", names=b"m*")) == [b"made"]

    async def ask(workspace: Workspace) -> set[bytes] | None:
        async with await workspace.sandbox() as client:
            return await searching.in_sandbox(client, "needle", b"deep", [])

    assert workspace.do(ask) == {b"deep/er/plain"}
    # What a command closed to others it can't read either.
    workspace.sh("echo needle > deep/closed; chmod 000 deep/closed")
    assert workspace.do(ask) is None
    found = both(workspace, b"needle", b"deep")
    assert {*paths_of(found), *found.unread} == {b"deep/closed", b"deep/er/plain"}


def test_what_a_person_changes_under_a_sandbox_is_searched_as_commands_see_it(engine: None, workspace: Bench) -> None:
    root = Path(os.fsdecode(workspace.workspace))
    lay_out(root, {b"replaced": b"needle old\n", b"kept": b"needle\n"})
    workspace.sh("cat replaced")
    (root / "other").write_bytes(b"needle new\n")
    os.rename(root / "other", root / "replaced")
    (root / "added").write_bytes(b"needle\n")

    async def cat(opened: Workspace) -> dict[bytes, bytes]:
        client = await KeeperClient.connect(opened.overlay_path)
        assert client is not None
        async with client:
            commands = {name: Command(("cat", name), output_limit=1024) for name in ("kept", "replaced", "added")}
            shown = {os.fsencode(name): (await client.run(command)).stdout for name, command in commands.items()}
        return {name: text for name, text in shown.items() if text}

    # In the sandbox as it is: the next command would get a fresh one.
    found = both(workspace, b"needle")
    assert {match.path: match.text + b"\n" for match in found.matches} == workspace.do(cat)
    assert is_marked_changed(workspace.overlay)


def test_globs_and_trees_are_of_the_view_that_commands_see(engine: None, workspace: Bench) -> None:
    root = Path(os.fsdecode(workspace.workspace))
    lay_out(root, {b"a.py": b"", b"b/c.py": b"", b"b/skipped.py": b"", b".gitignore": b"skipped.py\n"})
    workspace.sh("rm a.py; touch b/d.py")
    assert workspace.do(lambda opened: opened.glob(b"**/*.py")).paths == (b"b/c.py", b"b/d.py")
    assert workspace.do(lambda opened: opened.tree()).lines == (".gitignore", "b/", "  c.py", "  d.py")
