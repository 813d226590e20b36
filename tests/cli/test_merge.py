"""`workbench merge`: a conflict ends in a commit, whatever it's about."""

from __future__ import annotations

import json

from tests.bench import Bench
from tests.conftest import Cli
from tests.trees import snapshot

LINES = [f"line {number}\n" for number in range(20)]


def test_a_conflict_is_merged_reviewed_and_landed(cli: Cli) -> None:
    file = cli.workspace / "long.txt"
    file.write_text("".join(LINES))
    cli.sh("sed -i 's/^line 1$/agent/' long.txt; echo agent > other")
    file.write_text("".join([*LINES[:-1], "person\n"]))
    before = snapshot(cli.workspace)
    assert b"workbench merge" in cli.commit(code=3).stderr
    told = json.loads(cli("merge", "--json").stdout)
    assert [path["path"] for path in told["merged"]] == ["long.txt"]
    assert snapshot(cli.workspace) == before
    status = json.loads(cli("status", "--json").stdout)
    assert (status["conflicts"], status["unresolved"]) == ([], [])
    cli.commit()
    assert file.read_text() == "".join([LINES[0], "agent\n", *LINES[2:-1], "person\n"])


def test_nothing_lands_while_conflict_markers_are_left_whatever_the_file_is_called(cli: Cli) -> None:
    file = cli.workspace / "long.txt"
    file.write_text("".join(LINES))
    cli.sh("sed -i 's/^line 1$/agent/' long.txt; echo agent > other")
    file.write_text("".join([LINES[0], "person\n", *LINES[2:]]))
    assert b"CONFLICT in long.txt" in cli("merge", code=3).stderr
    assert json.loads(cli("status", "--json").stdout)["unresolved"] == [{"path": "long.txt", "path_bytes": None}]
    assert b"unresolved" in cli("status").stdout
    assert b"[unresolved_conflicts]" in cli.commit(code=4).stderr
    cli("review", "--accept", "other")
    cli("commit", "--accepted")
    assert (cli.workspace / "other").exists()
    cli.sh("mv long.txt renamed")
    refused = json.loads(cli.commit("--json", code=4).stdout)
    assert [path["path"] for path in refused["paths"]] == ["renamed"]
    cli.sh("mv renamed long.txt; sed -i -e '/^<<<<<<<\\|^=======\\|^>>>>>>>/d' long.txt")
    assert json.loads(cli("status", "--json").stdout)["unresolved"] == []
    cli.commit()
    assert file.read_text() == "".join([LINES[0], "agent\n", "person\n", *LINES[2:]])


def test_a_binary_conflict_is_decided_for_one_side(cli: Cli) -> None:
    for name in ("ours.bin", "theirs.bin"):
        (cli.workspace / name).write_bytes(b"old\0")
    cli.sh("printf 'agent\\0' > ours.bin; printf 'agent\\0' > theirs.bin")
    for name in ("ours.bin", "theirs.bin"):
        (cli.workspace / name).write_bytes(b"person\0")
    done = json.loads(cli("merge", "--json", code=3).stdout)
    assert [(path["path"], path["reason"]) for path in done["unmerged"]] == [
        ("ours.bin", "binary"),
        ("theirs.bin", "binary"),
    ]
    cli("merge", "--ours", "ours.bin", "--theirs", "theirs.bin")
    assert Bench(cli.workspace).told() == {b"ours.bin": "modified"}
    cli.commit()
    assert (cli.workspace / "ours.bin").read_bytes() == b"agent\0"
    assert (cli.workspace / "theirs.bin").read_bytes() == b"person\0"
