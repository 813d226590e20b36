"""The first use: an agent fixes a failing test of a real package, and what it did lands since its check passed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.conftest import Cli, git_in
from tests.suites.fetched import source_distribution
from tests.trees import Node, snapshot
from tests.uses.conftest import Configure
from tests.uses.scripts import MODEL, call, events, say
from workbench.testing import StubModelServer, StubReply

PACKAGE = "isodate==0.7.2"
FILE = "src/isodate/isoduration.py"
RIGHT = 'if groups["sign"] == "-":\n            ret = timedelta(0) - ret\n'
PLANTED = 'if groups["sign"] == "-":\n            ret = timedelta(0) + ret\n'
TESTS = "PYTHONPATH=src python -m pytest -q"
WORKFLOW = ".github/workflows/test.yml"


@pytest.fixture(scope="module")
def distribution() -> Path:
    return source_distribution(PACKAGE)


class Package:
    """The package in a repository, with a bug in it that its own tests find."""

    def __init__(self, distribution: Path, root: Path) -> None:
        self.root = root
        shutil.copytree(distribution, root)
        self.released = self.files()
        source = (root / FILE).read_text()
        assert source.count(RIGHT) == 1
        (root / FILE).write_text(source.replace(RIGHT, PLANTED))
        git = git_in(root)
        git("init", "-q", "-b", "main")
        git("add", "-A")
        git("commit", "-q", "-m", "As released, but for a bug")
        self.cli = Cli(root)

        self.bench = Bench(root)

    def files(self) -> dict[bytes, Node]:
        return snapshot(self.root, times=False, skip=(b".git",))

    def run(self, *options: str, code: int) -> tuple[list[dict[str, object]], str]:
        """Have the agent work, as somebody who trusts the tests; its events, and what was shown of the check."""
        task = ["--model", MODEL, "--json", *options, "--commit", "success", "A test fails. Fix what it found."]
        done = self.cli("run", *task, code=code)
        return events(done.stdout), done.stderr.decode()


@pytest.fixture
def package(engine: None, distribution: Path, tmp_path: Path) -> Package:
    return Package(distribution, tmp_path / "isodate")


def fixed(new: str) -> list[StubReply]:
    """Runs the tests, reads what they are about, and puts `new` in the place of the bug."""
    return [
        call("shell", command=TESTS),
        call("grep", pattern="sign", path="src"),
        call("read_file", path=FILE),
        call("edit_file", path=FILE, old_text=PLANTED, new_text=new),
        call("shell", command=TESTS),
    ]


def test_a_fix_lands_since_its_check_passed(package: Package, configure: Configure) -> None:
    repository = snapshot(package.root / ".git")
    with StubModelServer(*fixed(RIGHT), say("The sign was lost.")) as stub:
        configure(stub)
        told, shown = package.run("--check", TESTS, code=0)
    results = [request.body["messages"][-1]["content"] for request in stub.requests[1:]]
    assert " failed" in results[0]
    assert "280 passed" in results[-1]
    assert "280 passed" in shown
    assert package.files() == package.released
    assert snapshot(package.root / ".git") == repository
    assert git_in(package.root)("diff", "--stat").splitlines()[-1].strip().startswith("1 file changed")
    result = told[-1]
    (landed,) = json.loads(package.cli("log", "--audit", "--json").stdout)
    assert (landed["action"], landed["commit_id"], landed["counts"]) == ("commit", result["commit_id"], {"modified": 1})


def test_a_wrong_fix_waits_and_can_be_taken_back(package: Package, configure: Configure) -> None:
    before = snapshot(package.root)
    with StubModelServer(*fixed(PLANTED.replace("+ ret", "* -1")), say("The sign was lost.")) as stub:
        configure(stub)
        told, shown = package.run("--check", TESTS, code=6)
    assert " failed" in shown
    result = told[-1]
    assert (result["exit_code"], result["waits"]["code"]) == (6, "check_failed")  # type: ignore[index]
    assert snapshot(package.root) == before
    assert package.bench.told() == {FILE.encode(): "modified"}
    package.cli("rewind", str(result["message_id"]))
    assert package.bench.told() == {}
    assert snapshot(package.root) == before


def test_a_fix_with_a_change_of_what_runs_on_other_machines_waits_for_a_person(
    package: Package, configure: Configure
) -> None:
    before = snapshot(package.root)
    risky = call("shell", command=f"echo '  # run me' >> {WORKFLOW}")
    with StubModelServer(*fixed(RIGHT), risky, say("The sign was lost.")) as stub:
        configure(stub)
        told, _ = package.run("--check", TESTS, code=7)
    assert told[-1]["waits"]["code"] == "policy_waits"  # type: ignore[index]
    assert snapshot(package.root) == before
    assert package.bench.told() == {WORKFLOW.encode(): "modified", FILE.encode(): "modified"}
