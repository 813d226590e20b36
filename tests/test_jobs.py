"""A workspace's commands in the background and its shell, as a library has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.errors import SandboxError
from workbench.mounting import SandboxOptions
from workbench.protocol.commands import Command
from workbench.workspace import Workspace

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["namespace", pytest.param("docker", marks=pytest.mark.engine)])
def options(request: pytest.FixtureRequest) -> SandboxOptions:
    if request.param == "docker":
        request.getfixturevalue("engine")
    return SandboxOptions(backend=request.param)


async def test_a_server_in_the_background_a_shell_and_a_commit_that_ends_them(
    state: Path, repo: Path, options: SandboxOptions
) -> None:
    async with Workspace.open(repo, options=options) as workspace:
        assert await workspace.jobs() == ()
        with pytest.raises(SandboxError) as caught:
            await workspace.running()
        assert caught.value.code == "job_not_found"
        async with workspace.shell_session() as shell:
            assert (await shell.run('cd src; export A=1; f() { echo "f $1"; }')).exit_code == 0
            result = await shell.run("pwd; echo $A; f x; echo made >made")
            assert result.stdout.decode().splitlines() == [f"{repo}/src", "1", "f x"]
        name = await workspace.start_job(Command(("sh", "-c", "echo here; exec sleep 1000")))
        async with workspace.attached(name, follow=False) as job:
            heard = bytearray()
            assert await job.wait(on_stdout=heard.extend) is None
        other = await workspace.start_job(Command(("sleep", "1000")))
        await workspace.end_job(other)
        assert {one.id: one.over for one in await workspace.jobs()} == {name: False, other: True}
        changes = await workspace.changes()
        landed = await workspace.commit(workspace.reviewed(changes))
        assert [(one.id, one.ended_by) for one in landed.ended] == [(name, "commit")]
        assert (repo / "src" / "made").read_text() == "made\n"
