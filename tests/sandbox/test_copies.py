"""An engine that doesn't share our files: what is in its copies is never lost, and nothing of them stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import Bench, InPhases
from tests.sandbox.support import Layers, backend_of, left_of, spec
from tests.sandbox.users import OrdinaryUser, ordinary_user
from tests.trees import make_tree, snapshot
from workbench.errors import SandboxError
from workbench.sandbox import probe
from workbench.sandbox.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


@pytest.fixture(params=["copied", "plain"], autouse=True)
def sharing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With an overlay over the copies, and without."""
    monkeypatch.setenv("WORKBENCH_SHARING", request.param)
    return str(request.param)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "w"
    path.mkdir()
    make_tree(path)
    return path


@pytest.fixture
def bench(state: Path, workspace: Path) -> Bench:
    return Bench(workspace)


def test_a_whole_session_goes_as_it_does_on_shared_files_and_leaves_nothing(
    bench: Bench, workspace: Path, sharing: str
) -> None:
    before = snapshot(workspace)
    assert bench.inside() == snapshot(workspace, times=False)
    _, name = bench.running()
    # Two containers, the volumes of the layers, and that of the overlay where there is one.
    assert len(left_of(name)) == (5 if sharing == "copied" else 4)
    assert any("copying" in line for line in bench.said)
    bench.sh(
        "echo more >> README.md; rm -r docs; mkdir docs; echo new > docs/new; ln -s docs/new ln; mv src/main.py moved"
    )
    view = bench.inside()
    assert snapshot(workspace) == before
    assert not bench.stop()
    assert left_of(name) == []
    # Another copy, of both layers this time.
    assert bench.inside() == view
    bench.commit()
    assert snapshot(workspace, times=False) == view
    assert bench.told() == {}
    bench.sh("echo late > late")
    bench.discard()
    assert bench.told() == {}
    assert bench.inside() == view


def test_what_is_read_outside_is_what_a_running_command_has_written(bench: Bench) -> None:
    agent = InPhases(bench, "echo one > file; phase first; echo two > file; phase second")
    agent.at("first")
    assert bench.do(lambda workspace: workspace.read(b"file")) == b"one\n"
    agent.go_on()
    agent.at("second")
    assert bench.do(lambda workspace: workspace.read(b"file")) == b"two\n"
    names = [listed.path for listed in bench.do(lambda workspace: workspace.listing(b""))[0]]
    assert b"file" in names
    assert bench.told() == {b"file": "added"}
    agent.go_on()
    agent.end()


@pytest.mark.anyio
async def test_a_start_that_fails_leaves_neither_volumes_nor_changes(sharing: str, tmp_path: Path) -> None:
    layers = Layers(tmp_path / "layers")
    (layers.upper / "kept").write_text("kept")
    backend = backend_of(spec("docker", layers.mount, sharing=sharing, runtime="no-such-runtime"))
    with pytest.raises(SandboxError):
        await backend.start(lambda line: None)
    assert left_of(backend.name) == []
    assert os.listdir(layers.upper) == ["kept"]


@pytest.mark.anyio
async def test_the_probe_does_the_whole_cycle_with_copies(sharing: str, tmp_path: Path) -> None:
    what = spec("auto", sharing=sharing, uid=os.getuid() or 1234, gid=os.getgid() or 1234)
    picked = await probe.pick("auto", what, str(tmp_path))
    assert (picked.backend, picked.result.sharing) == ("docker", sharing)
    assert f"with {picked.result.way}: They were asked for" in picked.why
    assert (await probe.probe_docker(what, str(tmp_path))).sharing == sharing
    assert (await probe.probe_docker(replace(what, sharing="mounted"), str(tmp_path))).sharing == "mounted"


@pytest.mark.anyio
async def test_where_a_mount_of_our_files_fails_the_probe_takes_copies_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = spec("auto", uid=os.getuid() or 1234, gid=os.getgid() or 1234)
    facts = Engine().facts()
    monkeypatch.setattr(Engine, "facts", lambda self: replace(facts, local=False, operating_system="Some Desktop"))
    result = await probe.probe_docker(what, str(tmp_path))
    assert (result.ok, result.sharing) == (True, "copied")
    assert "Some Desktop" in result.reason


AS_USER = """
import os, sys
from pathlib import Path
from tests.bench import Bench
os.environ["WORKBENCH_STATE"] = os.path.abspath("state")
Path("w").mkdir()
Path("w/old").write_text("old")
bench = Bench(os.path.abspath("w"), sharing=sys.argv[1])
bench.sh("id -u; echo new > new; rm old; mkdir closed; echo x > closed/x; chmod 0 closed")
assert bench.told() == {b"new": "added", b"old": "deleted"}, bench.told()
upper = Path(bench.overlay, "upper")
assert upper.joinpath("new").stat().st_uid == os.getuid()
bench.sh("test $(stat -c %a closed) = 0; chmod 700 closed; test $(cat closed/x) = x")
assert upper.joinpath("closed", "x").read_text() == "x\\n"
bench.stop()
bench.discard()
assert bench.told() == {}
bench.stop()
import shutil
shutil.rmtree("state")
"""


@pytest.fixture
def user() -> Iterator[OrdinaryUser]:
    with ordinary_user("docker") as user:
        yield user


@pytest.mark.root
def test_an_ordinary_user_keeps_everything_of_its_own(user: OrdinaryUser, sharing: str) -> None:
    user.run(AS_USER, sharing)
