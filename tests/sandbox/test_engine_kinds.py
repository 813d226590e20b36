"""Every kind of engine that there is, started by the test: rootless ones as an ordinary user's, over files of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tests.bench import Bench
from tests.conftest import ROOT, Cli
from tests.engines import KINDS, private_engine
from tests.sandbox.support import spec
from workbench.errors import SandboxError
from workbench.sandbox import images, probe
from workbench.sandbox.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.root, pytest.mark.usefixtures("engine")]

_IMAGE = "workbench/base:1"
_TESTS = "tests/sandbox/elsewhere.py"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "docker"])
def test_a_sandbox_on_any_kind_of_engine_keeps_every_promise_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    with private_engine(_IMAGE, kind) as engine:
        # The first version of control groups can't be had by anybody but root.
        limits = engine.user is None or Path("/sys/fs/cgroup/cgroup.controllers").exists()
        told = {"DOCKER_HOST": engine.host, "WORKBENCH_TEST_IMAGE": _IMAGE, "WORKBENCH_TEST_LIMITS": str(limits)}
        if engine.user is not None:
            done = engine.user.pytest(_TESTS, **told)
        else:
            argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", _TESTS]
            environment = {**os.environ, **told, "TMPDIR": str(tmp_path)}
            environment.pop("PYTEST_XDIST_WORKER", None)
            done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert " skipped" not in done.stdout, done.stdout
        assert engine.left() == []


def test_an_engine_that_can_mount_no_overlay_gets_a_plain_copy_and_the_probe_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with private_engine(_IMAGE, "docker with volumes on an overlay") as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        what = spec("auto", uid=1234, gid=1234, image=_IMAGE, sharing="copied")
        picked = anyio.run(probe.pick, "auto", what, str(tmp_path))
        assert (picked.backend, picked.result.sharing) == ("docker", "plain")
        assert "no overlay" in picked.why
        assert "With copies of our files: The engine can't mount the overlay" in picked.why
        assert engine.left() == []


def test_doctor_says_whether_gvisor_can_be_used_and_a_sandbox_that_asks_for_it_finds_the_same(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    with private_engine(images.reference(images.DEFAULT), "docker with gVisor") as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        told = json.loads(Cli(workspace)("doctor", "--json").stdout)
        [found] = [finding for finding in told["findings"] if finding["topic"] == "gVisor"]
        bench = Bench(workspace, backend="docker", runtime="runsc")
        if found["state"] == "ok":
            assert b"gVisor" in bench.sh("dmesg || cat /proc/version")
            bench.stop()
        else:
            assert found["finding"].startswith("it can't be used: ")
            with pytest.raises(SandboxError):
                bench.sh("true")
        assert engine.left() == []


def test_doctor_says_that_an_engine_without_gvisor_has_none(cli: Cli) -> None:
    if "runsc" in Engine().facts().runtimes:
        pytest.skip("the engine has it")
    told = json.loads(cli("doctor", "--json").stdout)
    [found] = [finding["finding"] for finding in told["findings"] if finding["topic"] == "gVisor"]
    assert found == "the engine has no runtime called runsc"
