"""Which backend is picked, and why."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from tests.sandbox.support import spec
from workbench.errors import OptionsError, SandboxError
from workbench.sandbox import namespace, probe
from workbench.sandbox.engine import Engine
from workbench.sandbox.filesystems import filesystem_name, lower_problem, upper_problem

pytestmark = pytest.mark.anyio

WHAT = spec("auto")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


@pytest.fixture
def namespaces_work(tmp_path: Path) -> None:
    result = probe_namespace_once(str(tmp_path))
    if not result.ok:
        pytest.skip(result.reason)


def probe_namespace_once(directory: str) -> probe.ProbeResult:
    import anyio

    return anyio.run(probe.probe_namespace, WHAT, directory)


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("uid", [0, 1234])
async def test_docker_passes_the_whole_cycle_and_leaves_nothing(tmp_path: Path, uid: int) -> None:
    uid = uid if os.geteuid() == 0 else os.geteuid()
    result = await probe.probe_docker(
        replace(WHAT, uid=uid, gid=uid, labels={"workbench.test": str(tmp_path)}), str(tmp_path)
    )
    assert result.ok, result.reason
    assert f"user inside: {uid}" in result.details
    assert os.listdir(tmp_path) == ["probe.json"]
    engine = Engine()
    assert not engine.containers(f"workbench.test={tmp_path}")
    assert not engine.volumes(f"workbench.test={tmp_path}")


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
async def test_what_fails_the_same_in_every_way_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_CYCLE", b"raise SystemExit('nothing works here')")
    result = await probe.probe_docker(WHAT, str(tmp_path))
    assert not result.ok
    assert result.reason.count("nothing works here") == 1
    assert "It's the same with copies of our files. It's the same with plain copies" in result.reason


@pytest.mark.usefixtures("namespaces_work")
@pytest.mark.parametrize("uid", [0, 1234])
async def test_the_namespace_backend_passes_the_whole_cycle(tmp_path: Path, uid: int) -> None:
    uid = uid if os.geteuid() == 0 else os.geteuid()
    result = await probe.probe_namespace(replace(WHAT, uid=uid, gid=uid), str(tmp_path), fresh=True)
    assert result.ok, result.reason
    assert os.listdir(tmp_path) == ["probe.json"]


@pytest.mark.usefixtures("namespaces_work")
async def test_what_worked_is_remembered_for_as_long_as_nothing_changes(tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    await probe.probe_namespace(WHAT, str(tmp_path))
    kept = json.loads(file.read_text())
    kept["passed"]["namespace"]["details"] = ["remembered"]
    file.write_text(json.dumps(kept))
    assert (await probe.probe_namespace(WHAT, str(tmp_path))).details == ("remembered",)
    assert (await probe.probe_namespace(replace(WHAT, gid=4321), str(tmp_path))).details != ("remembered",)


@pytest.mark.usefixtures("namespaces_work")
async def test_what_no_longer_works_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await probe.probe_namespace(WHAT, str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(namespace, "_PATH", "/nonexistent")
        assert (await probe.probe_namespace(WHAT, str(tmp_path))).ok
        assert not (await probe.probe_namespace(WHAT, str(tmp_path), fresh=True)).ok
        assert not (await probe.probe_namespace(WHAT, str(tmp_path))).ok


@pytest.mark.usefixtures("namespaces_work")
async def test_a_memory_that_cannot_be_read_is_reported_and_made_anew(tmp_path: Path) -> None:
    (tmp_path / "probe.json").write_text("{")
    heard: list[str] = []
    assert (await probe.probe_namespace(WHAT, str(tmp_path), heard.append)).ok
    assert any("probe.json" in line for line in heard)


@pytest.mark.usefixtures("nowhere")
async def test_docker_that_was_asked_for_never_falls_back(tmp_path: Path) -> None:
    with pytest.raises(SandboxError) as caught:
        await probe.pick("docker", WHAT, str(tmp_path))
    assert caught.value.code == "engine_unavailable"


@pytest.mark.usefixtures("nowhere", "namespaces_work")
async def test_auto_falls_back_and_says_why_and_what_is_lacking(tmp_path: Path) -> None:
    picked = await probe.pick("auto", WHAT, str(tmp_path))
    assert picked.backend == "namespace"
    assert "none.sock" in picked.why
    assert picked.isolation == namespace.lacks()


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
async def test_auto_takes_docker_where_it_works(tmp_path: Path) -> None:
    picked = await probe.pick("auto", WHAT, str(tmp_path))
    assert (picked.backend, picked.isolation) == ("docker", "")


@pytest.mark.usefixtures("nowhere")
async def test_where_nothing_works_both_reasons_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "_PATH", "/nonexistent")
    with pytest.raises(SandboxError, match=r"none\.sock.*needs unshare") as caught:
        await probe.pick("auto", WHAT, str(tmp_path))
    assert caught.value.code == "backend_unavailable"
    assert os.listdir(tmp_path) == []


async def test_a_backend_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionsError):
        await probe.pick("podman", WHAT, str(tmp_path))


@pytest.mark.usefixtures("namespaces_work")
async def test_what_a_killed_probe_left_is_removed_by_the_next(tmp_path: Path) -> None:
    from workbench.vfs.session import OverlayDirectory

    abandoned = OverlayDirectory.create(str(tmp_path / "probe-abandoned"), "probe")
    current = OverlayDirectory.create(str(tmp_path / "probe-current"), "probe")
    with current.lock():
        await probe.probe_namespace(WHAT, str(tmp_path), fresh=True)
    assert not os.path.exists(abandoned.path)
    assert os.path.exists(current.path)


@pytest.mark.usefixtures("namespaces_work")
async def test_probes_side_by_side_are_not_in_each_others_way(tmp_path: Path) -> None:
    found: list[probe.ProbeResult] = []

    async def look() -> None:
        for _ in range(8):
            found.append(await probe.probe_namespace(WHAT, str(tmp_path), fresh=True))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(look)
    assert [result.reason for result in found] == [""] * 32
    assert not [name for name in os.listdir(tmp_path) if name.startswith("probe-")]


def test_filesystems_that_cannot_hold_layers_are_named_with_the_reason(tmp_path: Path) -> None:
    assert filesystem_name("/proc") == "proc"
    assert "proc" in lower_problem("/proc")
    assert "proc" in upper_problem(b"/proc/self")
    if filesystem_name(tmp_path.as_posix()) in ("ext4", "xfs", "btrfs", "tmpfs"):
        assert lower_problem(str(tmp_path)) == upper_problem(str(tmp_path)) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"error": "OSError: no"}, "OSError: no"),
        ({"nonce": "another"}, "doesn't see our files"),
        ({"boot_id": "another"}, "another kernel"),
        ({"type": "ext4"}, "a ext4 where the overlay should be"),
        ({"options": ["ro"]}, "read-only"),
        ({"super_options": ["ro"]}, "read-only"),
        ({"seen": {"opaque": ["new", "old"], "top": []}}, "merged view is wrong"),
    ],
)
def test_an_answer_that_is_not_what_it_must_be_is_no_pass(changes: dict[str, object], reason: str) -> None:
    good: dict[str, object] = {
        "nonce": "n",
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text(),
        "type": "overlay",
        "options": ["rw"],
        "super_options": ["rw"],
        "seen": {"opaque": ["new"], "top": probe._SEEN},
    }
    assert probe._answer_problem(good, "n", "mounted") == ""
    assert reason in probe._answer_problem({**good, **changes}, "n", "mounted")
    # An engine that has copies may run on another kernel.
    assert (probe._answer_problem({**good, **changes}, "n", "copied") == "") == ("boot_id" in changes)
