"""What killed keepers leave behind, and how it goes away."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.support import Layers, backend_of, running, spec
from tests.sandbox.users import OrdinaryUser, ordinary_user
from workbench.errors import SandboxError
from workbench.protocol.records import MountRecord
from workbench.sandbox import docker, leftovers
from workbench.sandbox.backend import SandboxSpec
from workbench.sandbox.engine import Engine
from workbench.vfs.session import OverlayDirectory

pytestmark = [pytest.mark.anyio, pytest.mark.engine, pytest.mark.usefixtures("engine")]


@pytest.fixture
def state_id() -> Iterator[str]:
    value = secrets.token_hex(8)
    yield value
    engine = Engine()
    label = f"{leftovers.STATE_LABEL}={value}"
    left = [*engine.containers(label), *engine.volumes(label)]
    for item in left:
        docker.remove(engine, item["Labels"][docker.NAME_LABEL])
    assert not left


@pytest.fixture
def overlay(tmp_path: Path) -> OverlayDirectory:
    (tmp_path / "lower").mkdir()
    return OverlayDirectory.create(str(tmp_path / "state" / "workspaces" / "w" / "overlays" / "s"), "s")


def _spec(overlay: OverlayDirectory, tmp_path: Path, state_id: str) -> SandboxSpec:
    labels = {leftovers.STATE_LABEL: state_id, leftovers.OVERLAY_LABEL: overlay.path}
    layers = Layers(tmp_path / secrets.token_hex(4))
    return spec("docker", layers.mount, labels=labels)


async def test_a_sweep_removes_what_nobody_holds_and_leaves_what_somebody_does(
    overlay: OverlayDirectory, tmp_path: Path, state_id: str
) -> None:
    state = str(tmp_path / "state")
    assert leftovers.sweep(state, state_id) == ()
    async with running(_spec(overlay, tmp_path, state_id)) as inside:
        name = inside.backend.name
        with overlay.lock():
            assert leftovers.sweep(state, state_id) == ()
            assert await inside("1") == 1
        assert leftovers.sweep(state, "another") == ()
        assert leftovers.sweep(str(tmp_path / "elsewhere"), state_id) == ()
        assert leftovers.sweep(state, state_id) == (name,)


async def test_a_sweep_removes_what_an_overlay_that_has_gone_left(
    overlay: OverlayDirectory, tmp_path: Path, state_id: str
) -> None:
    async with running(_spec(overlay, tmp_path, state_id)) as inside:
        leftovers.remove_tree(overlay.path)
        assert leftovers.sweep(str(tmp_path / "state"), state_id) == (inside.backend.name,)


async def test_a_mount_that_is_written_down_is_removed_by_name(
    overlay: OverlayDirectory, tmp_path: Path, state_id: str
) -> None:
    async with running(_spec(overlay, tmp_path, state_id)) as inside:
        mount = MountRecord(name=inside.backend.name, backend="docker", boot_id=leftovers.boot_id())
        leftovers.ensure_unmounted(mount, overlay)
        assert not Engine().volumes(f"{docker.NAME_LABEL}={mount.name}")
        leftovers.ensure_unmounted(mount, overlay)


def test_an_engine_that_cannot_be_asked_proves_nothing_until_the_next_boot(
    overlay: OverlayDirectory, tmp_path: Path
) -> None:
    nobody = Engine(str(tmp_path / "none.sock"))
    mount = MountRecord(name="workbench-x", backend="docker", boot_id=leftovers.boot_id())
    with pytest.raises(SandboxError) as caught:
        leftovers.ensure_unmounted(mount, overlay, nobody)
    assert caught.value.code == "engine_unavailable"
    leftovers.ensure_unmounted(mount.model_copy(update={"boot_id": "another"}), overlay, nobody)
    # A copy outlives the kernel: only the engine can say what is in it.
    with pytest.raises(SandboxError):
        leftovers.ensure_unmounted(mount.model_copy(update={"boot_id": "another", "copied": True}), overlay, nobody)


def test_a_tree_of_any_depth_mode_and_name_is_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    here = os.getcwd()
    try:
        os.chdir(tree)
        for _ in range(1500):
            os.mkdir("d" * 50)
            os.chdir("d" * 50)
        os.symlink(outside, "link")
    finally:
        os.chdir(here)
    (tree / ".removed-0").mkdir()
    (tree / "locked" / "in").mkdir(parents=True)
    (tree / os.fsdecode(b"\xff\n")).touch()
    os.mkfifo(tree / "fifo")
    (tree / "locked" / "in").chmod(0)
    (tree / "locked").chmod(0)
    leftovers.remove_tree(str(tree))
    assert sorted(os.listdir(tmp_path)) == ["outside"]
    assert os.listdir(outside) == ["kept"]
    leftovers.remove_tree(str(tree))


AS_USER = """
import os, sys
from pathlib import Path
import anyio
from tests.sandbox.support import Layers, running, spec
from workbench.sandbox.leftovers import remove_tree
layers = Layers(Path("layers"))
async def main():
    async with running(spec("docker", layers.mount, label=sys.argv[1])) as inside:
        assert await inside("[os.getuid(), os.getgid()]") == [os.getuid(), os.getgid()]
        await inside.sh("cd /workspace; echo new > new; mkdir closed; touch closed/x; chmod 0 closed; rm old")
anyio.run(main)
assert (layers.upper / "new").stat().st_uid == os.getuid()
assert (layers.work / "work").stat().st_uid == 0
remove_tree("layers")
assert not os.path.exists("layers")
"""


@pytest.fixture
def user() -> Iterator[OrdinaryUser]:
    with ordinary_user("docker") as user:
        yield user


@pytest.mark.root
def test_a_user_who_may_use_the_engine_leaves_nothing_of_roots(user: OrdinaryUser, state_id: str) -> None:
    user.run(AS_USER, state_id)


async def test_what_a_sandbox_leaves_is_removed_by_root_itself(
    overlay: OverlayDirectory, tmp_path: Path, state_id: str
) -> None:
    layers = Layers(tmp_path / "layers")
    what = spec("docker", layers.mount, labels={leftovers.STATE_LABEL: state_id})
    backend = backend_of(what)
    await backend.start(lambda line: None)
    await backend.stop()
    leftovers.remove_tree(str(tmp_path / "layers"))
    assert not layers.upper.exists()
