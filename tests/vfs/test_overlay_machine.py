"""The same operations on overlays (upper on disk, upper in memory), a plain directory and a kernel's overlay: one result."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.vfs.worlds import PlainWorld, Tree, Worlds, code_of, fill_lower, layer, new_base

_STEPS = 50
_EXAMPLES = int(os.environ.get("WORKBENCH_MACHINE_EXAMPLES", "300"))

# Which of the paths that are there: an index into them, so that shrinking finds the first.
_there = st.integers(0, 30)
_names = st.sampled_from([b"a", b"f", b"b", b"new", b"new\nline", b"\xff\xfe", b"..x", b"n" * 255])
_data = st.binary(max_size=40)
# Without root a directory of 0o600 is closed to the machine itself, and the kernel takes setuid and setgid away from what is
# written to, which a layer in memory, as root, keeps.
_MODES = [0o600, 0o755, 0o4711, 0o2775, 0o1777] if os.geteuid() == 0 else [0o700, 0o755, 0o711, 0o1777]


def _can_mount() -> bool:
    if os.geteuid() != 0:
        return False
    base = new_base()
    try:
        for name in ("lower", "upper", "work", "merged"):
            (base / name).mkdir()
        options = f"lowerdir={base / 'lower'},upperdir={base / 'upper'},workdir={base / 'work'},userxattr"
        command = ["mount", "-t", "overlay", "overlay", "-o", options, base / "merged"]
        if subprocess.run(command, capture_output=True).returncode:
            return False
        subprocess.run(["umount", base / "merged"], check=True)
        return True
    finally:
        shutil.rmtree(base)


class OverlayMachine(RuleBasedStateMachine):
    lower: Path
    kernel: bool
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.worlds = Worlds(new_base(), self.lower, kernel=self.kernel)
        self.handles: list[dict[str, BinaryIO]] = []
        self.paths: list[bytes] = self.worlds.plain.paths()
        self.same_layers = True

    def some(self, index: int) -> bytes:
        return self.paths[index % len(self.paths)] if self.paths else b"nothing"

    def new(self, index: int, name: bytes) -> bytes:
        """A path in some directory, or, not seldom, below something that isn't one."""
        above = self.paths[index % len(self.paths)] if self.paths and index % 4 else b""
        return above + b"/" + name if above else name

    def all(self, operation: str, *arguments: object) -> Any:
        type(self).steps += 1
        results = {
            name: code_of(lambda world=world: getattr(world, operation)(*arguments))  # type: ignore[misc]
            for name, world in self.worlds.all.items()
        }
        assert len({repr(result) for result in results.values()}) == 1, (operation, arguments, results)
        self.paths = self.worlds.plain.paths()
        return results["plain"]

    @invariant()
    def the_merged_trees_are_equal_now_and_then(self) -> None:
        # A whole tree costs more than all that changes it; what differs goes on to differ.
        if type(self).steps % 4 == 0:
            self.compare(kernel=type(self).steps % 16 == 0)

    def compare(self, *, kernel: bool = True) -> None:
        expected = self.worlds.plain.tree()
        for name, world in self.worlds.all.items():
            if kernel or name != "kernel":
                assert _differences(world.tree(), expected) == {}, name

    @rule(index=_there, name=_names, data=_data)
    def write_new(self, index: int, name: bytes, data: bytes) -> None:
        self.all("write_bytes", self.new(index, name), data)

    @rule(index=_there, data=_data)
    def write_again(self, index: int, data: bytes) -> None:
        self.all("write_bytes", self.some(index), data)

    @rule(index=_there, name=_names)
    def create(self, index: int, name: bytes) -> None:
        self.all("create", self.new(index, name))

    @rule(index=_there, size=st.integers(0, 100))
    def truncate(self, index: int, size: int) -> None:
        self.all("truncate", self.some(index), size)

    @rule(index=_there, name=_names, mode=st.sampled_from([0o777, 0o700, 0o3770]))
    def mkdir(self, index: int, name: bytes, mode: int) -> None:
        self.all("mkdir", self.new(index, name), mode)

    @rule(index=_there)
    def rmdir(self, index: int) -> None:
        self.all("rmdir", self.some(index))

    @rule(index=_there)
    def unlink(self, index: int) -> None:
        self.all("unlink", self.some(index))

    @rule(index=_there)
    def remove_tree(self, index: int) -> None:
        self.all("remove_tree", self.some(index))

    @rule(index=_there)
    def remove_and_make_again(self, index: int) -> None:
        path = self.some(index)
        self.all("remove_tree", path)
        self.all("mkdir", path, 0o777)
        self.all("create", path + b"/f")

    @rule(src=_there, index=_there, name=_names)
    def rename_to_new(self, src: int, index: int, name: bytes) -> None:
        self.rename(self.some(src), self.new(index, name))

    @rule(src=_there, dst=_there)
    def rename_over(self, src: int, dst: int) -> None:
        self.rename(self.some(src), self.some(dst))

    def rename(self, src: bytes, dst: bytes) -> None:
        self.all("rename", src, dst)

    @rule(index=_there, name=_names, to=st.sampled_from([b"f", b"../a", b"/etc", b"nowhere"]))
    def symlink(self, index: int, name: bytes, to: bytes) -> None:
        self.all("symlink", to, self.new(index, name))

    @rule(src=_there, index=_there, name=_names)
    def link(self, src: int, index: int, name: bytes) -> None:
        self.all("link", self.some(src), self.new(index, name))

    @rule(index=_there, mode=st.sampled_from(_MODES))
    def chmod(self, index: int, mode: int) -> None:
        self.all("chmod", self.some(index), mode)

    @rule(index=_there, moment=st.integers(0, 10**15))
    def utime(self, index: int, moment: int) -> None:
        self.all("utime", self.some(index), moment)

    @rule(index=_there, value=_data)
    def setxattr(self, index: int, value: bytes) -> None:
        self.all("setxattr", self.some(index), b"user.note", value)

    @rule(index=_there)
    def removexattr(self, index: int) -> None:
        self.all("removexattr", self.some(index), b"user.note")

    @rule(index=_there, mode=st.sampled_from(["r+b", "wb", "w+b", "ab", "a+b", "xb"]), write=st.booleans())
    def open_file(self, index: int, mode: str, write: bool) -> None:
        self.open_at(self.some(index), mode, write)

    @rule(index=_there, name=_names, mode=st.sampled_from(["wb", "a+b", "x+b"]))
    def open_new_file(self, index: int, name: bytes, mode: str) -> None:
        self.open_at(self.new(index, name), mode, True)

    def open_at(self, path: bytes, mode: str, write: bool) -> None:
        type(self).steps += 1
        opened = {name: code_of(lambda world=world: world.open(path, mode)) for name, world in self.worlds.all.items()}  # type: ignore[misc]
        self.paths = self.worlds.plain.paths()
        if isinstance(opened["plain"], str):
            assert len(set(opened.values())) == 1, (path, mode, opened)
            return
        if write:
            for file in opened.values():
                file.write(b"+")
                file.flush()
        else:
            # The kernel copies up at the open, we at the first write.
            self.same_layers = False
        self.handles.append(opened)

    @rule(which=st.integers(0, 5), at=st.integers(0, 30), data=_data)
    def write_to_open_file(self, which: int, at: int, data: bytes) -> None:
        def write(file: BinaryIO) -> object:
            file.seek(at)
            file.write(data)
            file.flush()
            return file.tell()

        self.with_open_file(which, write)

    @rule(which=st.integers(0, 5), at=st.integers(0, 30))
    def read_from_open_file(self, which: int, at: int) -> None:
        def read(file: BinaryIO) -> object:
            if not file.readable():
                return None
            file.seek(at)
            return file.read(10)

        self.with_open_file(which, read)

    @rule(which=st.integers(0, 5), size=st.integers(0, 60))
    def truncate_open_file(self, which: int, size: int) -> None:
        self.with_open_file(which, lambda file: file.truncate(size))

    @rule(which=st.integers(0, 5))
    def close_open_file(self, which: int) -> None:
        if self.handles:
            for file in self.handles.pop(which % len(self.handles)).values():
                file.close()

    def with_open_file(self, which: int, step: Callable[[BinaryIO], object]) -> None:
        if not self.handles:
            return
        type(self).steps += 1
        results = {name: step(file) for name, file in self.handles[which % len(self.handles)].items()}
        assert len({repr(result) for result in results.values()}) == 1, results

    def teardown(self) -> None:
        try:
            for opened in self.handles:
                for file in opened.values():
                    file.close()
            self.compare()
            self.and_with_the_kernel()
        finally:
            self.worlds.close()

    def and_with_the_kernel(self) -> None:
        if not self.kernel:
            return
        expected = self.worlds.plain.tree()
        self.worlds.unmount()
        assert _differences(self.worlds.read_kernels_upper(), expected) == {}
        assert _differences(self.worlds.read_ours_with_the_kernel(), expected) == {}
        if self.same_layers:
            ours = layer(self.worlds.base / "upper", self.lower)
            assert _differences(ours, layer(self.worlds.base / "kernel-upper", self.lower)) == {}


def _differences(found: Tree, expected: Tree) -> dict[bytes, object]:
    different: dict[bytes, object] = {}
    for path in found.keys() | expected.keys():
        ours, theirs = found.get(path), expected.get(path)
        if ours is not None and theirs is not None:
            pairs = [pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]]
            if pairs or len(ours) != len(theirs):
                different[path] = pairs
        elif ours != theirs:
            different[path] = (ours, theirs)
    return different


@pytest.fixture
def lower(tmp_path: Path) -> Iterator[Path]:
    lower = tmp_path / "lower"
    lower.mkdir()
    fill_lower(lower)
    before = PlainWorld(lower).tree()
    changes = [os.lstat(lower / os.fsdecode(path)).st_ctime_ns for path in before]
    yield lower
    assert PlainWorld(lower).tree() == before
    assert [os.lstat(lower / os.fsdecode(path)).st_ctime_ns for path in before] == changes


def test_every_world_agrees_after_every_operation(lower: Path) -> None:
    kernel = _can_mount()
    # Without the kernel the others are compared all the same; but where all can be had it belongs to them.
    assert kernel or os.geteuid() != 0 or os.environ.get("CI") != "true"
    machine = type("Machine", (OverlayMachine,), {"lower": lower, "kernel": kernel, "steps": 0})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=_EXAMPLES,
            stateful_step_count=_STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            database=None,
        ),
    )
    # Of 300 examples 10,000 operations; some steps find nothing to be done to.
    assert machine.steps >= _EXAMPLES * _STEPS * 2 // 3
