"""Commands as a model runs them, in a real sandbox."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tools.called import Called
from tests.waiting import until
from workbench.workspace import Workspace

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]


async def test_files_and_commands_see_the_same_at_once(root: Path, workspace: Workspace, call: Called) -> None:
    (root / "a").write_text("one\n")
    await call("edit_file", path="a", old_text="one", new_text="two")
    assert await call("shell", command="cat a; echo three >a; echo oops >&2; exit 3") == (
        "two\n[errors]\noops\n[exit code 3]"
    )
    assert await call("read_file", path="a") == "1\tthree"
    await call("write_file", path="sub/run", content="echo $0\n")
    assert await call("shell", command="sh run; pwd", directory="sub") == f"run\n{root}/sub\n[exit code 0]"
    diff = await call("checkpoint_diff", path="a")
    assert "-one\n+three\n" in diff
    assert "sub/run" not in diff
    assert "sub/run" in await call("checkpoint_diff")
    checkpoint = await workspace.checkpoint("m1")
    await call("shell", command="rm -r sub")
    since = await call("checkpoint_diff", since=checkpoint.message_id)
    assert "deleted file" in since
    assert "three" not in since
    assert "no checkpoint" in (await call.refused("checkpoint_diff", since="m2")).lower()
    assert (root / "a").read_text() == "one\n"


async def test_what_runs_too_long_says_too_much_or_is_left_running_ends_with_a_clear_result(call: Called) -> None:
    assert "longer than its timeout" in await call("shell", command="sleep 1000", timeout_seconds=1)
    long = await call("shell", command="seq 1000000; echo end")
    assert len(long) < 100_000
    assert "left out" in long
    assert "\nend\n" in long
    assert "left running" in await call("shell", command="sleep 1000 & echo started")
    assert "by SIGKILL" in await call("shell", command="kill -9 $$")


async def test_a_command_in_the_background_is_read_and_ended(call: Called) -> None:
    started = await call("shell", command="echo begun; exec sleep 1000", background=True)
    job = started.split(" as ")[1].split(";")[0]

    async def begun() -> bool:
        return "begun" in await call("read_output", job=job)

    await until(begun)
    assert (await call("read_output", job=job)).endswith("[still running]")
    assert "SIGTERM" in await call("read_output", job=job, stop=True)
    assert "exit code" in await call("read_output", job=job)
    assert "no command" in await call.refused("read_output", job="none")
    # What it may do next is what it can do: commands of ours are for people.
    assert "workbench" not in await call.refused("read_output", job="none")


async def test_finish_ends_the_run_with_its_summary(call: Called) -> None:
    result = await call.result("finish", summary="All done.")
    assert (result.content, result.terminate) == ("All done.", True)


async def test_a_file_made_by_a_command_with_an_odd_name_is_reached(
    root: Path, workspace: Workspace, call: Called
) -> None:
    await call("shell", command=r"printf x >$'new\nline'; mkdir d; ln -s ../$'new\nline' d/link")
    assert await call("read_file", path=r"new\nline") == "1\tx"
    assert await call("read_file", path="d/link") == "1\tx"
    assert os.listdir(root) == []
