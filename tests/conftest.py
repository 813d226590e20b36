"""What tests of every room share: an engine, a state directory of their own, trees to compare."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

# Before anything imports it.
pytest.register_assert_rewrite("workbench.testing")

from tests.needed import unavailable  # noqa: E402
from tests.trees import make_tree  # noqa: E402
from workbench.errors import SandboxError  # noqa: E402
from workbench.sandbox import leftovers  # noqa: E402
from workbench.sandbox.client import KeeperClient  # noqa: E402

ROOT = Path(__file__).parent.parent
IMAGES = ("workbench/base:1", "workbench/python:1")

# What is ignored where the tests are started (nohup, a shell's `&`) would be by every program that they start.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# Python keeps back what it writes into a pipe or a file, as it does by itself.
os.environ.pop("PYTHONUNBUFFERED", None)

# Hypothesis has a profile of its own for CI; a loaded machine may be slow with either. Some environments are without it.
with contextlib.suppress(ModuleNotFoundError):
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "workbench", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("workbench")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Where tests run side by side: those of a file after each other, and other people's suites, which share an image."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "tests/suites" if file.startswith("tests/suites/") else file

    return ByFile(config, log)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _missing() -> str:
    """What of the engine isn't there, in a sentence; empty where everything is."""
    for what, command in (
        ("no container engine answers: sandbox_images/engine says what is missing", ["docker", "info"]),
        ("the sandbox images aren't there: 'workbench images build' says why", ["docker", "inspect", *IMAGES]),
    ):
        try:
            subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return what
    return ""


@pytest.fixture(scope="session")
def engine() -> None:
    """A container engine with the sandbox images; without one the test is skipped, in CI it fails."""
    if message := _missing():
        unavailable(message)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of the test's own; afterwards every sandbox over it is ended, and what a killed one left removed."""
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("WORKBENCH_STATE", str(path))
    yield path
    for overlay in sorted(path.glob("workspaces/*/overlays/*")):
        anyio.run(_stop, str(overlay))
    identity = path / "id"
    # Without an engine there is nothing of it to remove.
    with contextlib.suppress(SandboxError, FileNotFoundError):
        leftovers.sweep(str(path), identity.read_text().strip())


async def _stop(overlay_path: str) -> None:
    client = await KeeperClient.connect(overlay_path)
    if client is not None:
        async with client:
            await client.stop(force=True)


@pytest.fixture(scope="session")
def samples() -> Path:
    """Real agents' session files, which don't come with this project: WORKBENCH_SAMPLES, else beside it."""
    beside = ROOT.parent / "shared" / "samples"
    directory = Path(os.environ.get("WORKBENCH_SAMPLES") or beside) / "sessions"
    if not directory.is_dir():
        pytest.skip("the sample sessions aren't here: WORKBENCH_SAMPLES names the directory that has them")
    return directory


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A small real git repository with files, an executable, a symlink, an empty file and a nested directory."""
    path = tmp_path / "repo"
    make_tree(path)
    git = git_in(path)
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    return path


def git_in(path: Path) -> Callable[..., str]:
    """A function that runs git in a directory, with no configuration but its own."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.com",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.com",
    }

    def git(*arguments: str) -> str:
        result = subprocess.run(
            ["git", *arguments], cwd=path, env=environment, capture_output=True, text=True, check=True
        )
        return result.stdout

    return git


class Cli:
    """The `workbench` command, run as a person's shell would."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace

    def __call__(
        self, command: str, *arguments: str | bytes, code: int | None = 0, **options: object
    ) -> subprocess.CompletedProcess[bytes]:
        argv: list[str | bytes] = [sys.executable, "-m", "workbench", command, "-w", str(self.workspace), *arguments]
        options = {"cwd": ROOT, "capture_output": True, "timeout": 600, "stdin": subprocess.DEVNULL, **options}
        result = subprocess.run(argv, check=False, **options)  # type: ignore[call-overload]
        if code is not None:
            assert result.returncode == code, (argv, result.returncode, result.stdout, result.stderr)
        return result  # type: ignore[no-any-return]

    def run(self, *argv: str | bytes, code: int | None = 0) -> subprocess.CompletedProcess[bytes]:
        """A command in the sandbox."""
        return self("exec", "--", *argv, code=code)

    def sh(self, script: str, code: int | None = 0) -> subprocess.CompletedProcess[bytes]:
        """A shell script in the sandbox."""
        return self.run("sh", "-c", script, code=code)

    def digest(self) -> str:
        return self("diff", "--digest-only").stdout.decode().strip()

    def commit(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[bytes]:
        """Commit what stands there at this moment."""
        return self("commit", "--digest", self.digest(), *arguments, code=code)


@pytest.fixture
def cli(engine: None, state: Path, repo: Path) -> Cli:
    """The command on a fresh repository, with the docker backend."""
    return Cli(repo)
