"""Container engines of a test's own, of every kind that there is; the shared one is never touched."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.needed import need_program, unavailable
from tests.sandbox.users import OrdinaryUser, ordinary_user
from tests.waiting import wait_until

_OF_USERS = ("docker with remapped users", "rootless docker", "rootless podman")
KINDS = (*_OF_USERS, "docker", "podman")

# As `sandbox_images/engine` starts one: it needs nothing of this machine's network.
_FLAGS = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
_STARTS = 3
# What an engine at home in a user namespace takes for its own, beside what the machine's has there.
_AS_ROOT_OF_ITS_OWN = 'rm -f /run/docker /run/containerd /run/xtables.lock; exec "$@"'
_PROCESSES = 16384
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class PrivateEngine:
    """An engine over a directory of its own; `host` is what DOCKER_HOST has to be, `user` whose it is if not root's."""

    def __init__(self, kind: str, directory: Path, user: OrdinaryUser | None) -> None:
        self.kind = kind
        self.host = f"unix://{directory}/engine.sock"
        self.user = user if kind.startswith("rootless") else None
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        if kind.endswith("podman"):
            self._argv = self._podman()
        elif kind == "rootless docker":
            self._argv = [*self._rootlesskit(), *self._dockerd("--rootless")]
        elif kind == "docker with remapped users":
            assert user is not None
            self._argv = self._dockerd(f"--userns-remap={user.name}")
        elif kind == "docker with gVisor":
            self._argv = self._dockerd(f"--add-runtime=runsc={shutil.which('runsc', path=_PATH)}")
        else:
            self._argv = self._dockerd()
        if kind == "docker with volumes on an overlay":
            self._mount_overlay()
        for name in ("run", "home"):
            (directory / name).mkdir(mode=0o700)
        # Remapped users have to get through to what is theirs.
        directory.chmod(0o711)
        if self.user is not None:
            for path in (directory, directory / "run", directory / "home"):
                os.chown(path, self.user.uid, self.user.gid)

    def _dockerd(self, *flags: str) -> list[str]:
        at = self._directory
        places = ["--data-root", f"{at}/data", "--exec-root", f"{at}/run/exec", "--pidfile", f"{at}/pid"]
        return ["dockerd", "-H", self.host, *places, *_FLAGS, *flags]

    def _mount_overlay(self) -> None:
        """Over what is on an overlay already, as everything is in a container, the kernel mounts no other one."""
        layers = [self._directory / name for name in ("lower", "upper", "work", "data/volumes")]
        for layer in layers:
            layer.mkdir(parents=True)
        # What isn't shared yet dockerd mounts over itself, and what is mounted below would be gone.
        data = str(layers[3].parent)
        subprocess.run(["mount", "--bind", "--make-shared", data, data], check=True)
        options = "lowerdir={},upperdir={},workdir={}".format(*layers)
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(layers[3])], check=True)

    def _rootlesskit(self) -> list[str]:
        options = ["--net=host", "--copy-up=/etc", "--copy-up=/run", "--propagation=rslave"]
        return ["rootlesskit", f"--state-dir={self._directory}/state", *options, "sh", "-c", _AS_ROOT_OF_ITS_OWN, "sh"]

    def _podman(self) -> list[str]:
        at = self._directory
        # It asks for more than what a root without CAP_SYS_RESOURCE may have.
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limits = f'default_ulimits = ["nofile={files}:{files}", "nproc={_PROCESSES}:{_PROCESSES}"]'
        (at / "containers.conf").write_text(f"[containers]\n{limits}\n")
        places = ["--root", f"{at}/data", "--runroot", f"{at}/run/containers", "--tmpdir", f"{at}/run/tmp"]
        manner = ["--storage-driver=overlay", "--cgroup-manager=cgroupfs", "--runtime=runc", "--events-backend=file"]
        return ["podman", *places, *manner, "system", "service", "--time=0", self.host]

    def start(self) -> None:
        """Start it and wait until it answers. A killed one's containerd sometimes isn't gone yet: then once more."""
        at = self._directory
        environment = {
            "PATH": _PATH,
            "HOME": f"{at}/home",
            "XDG_RUNTIME_DIR": f"{at}/run",
            "CONTAINERS_CONF": f"{at}/containers.conf",
        }
        who = {} if self.user is None else {"user": self.user.uid, "group": self.user.gid, "extra_groups": []}
        for _ in range(_STARTS):
            (at / "pid").unlink(missing_ok=True)
            with open(at / "log", "ab") as log:
                process = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    cwd=at,
                    env=environment,
                    **who,  # type: ignore[call-overload]
                )
            self._process = process
            wait_until(lambda: self._answers() or process.poll() is not None, "the engine answers")  # noqa: B023
            if process.poll() is None:
                return
        unavailable(f"{self.kind} can't be started: {(at / 'log').read_text(errors='replace').strip()[-2000:]}")

    def _answers(self) -> bool:
        return self.docker("version", check=False).returncode == 0

    def end(self, number: signal.Signals) -> None:
        """Send it a signal, and wait until it's gone."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(timeout=120)

    def docker(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["docker", "-H", self.host, *arguments], capture_output=True, check=check)

    def load(self, image: str) -> None:
        """Take over an image of the shared engine."""
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saving:
            subprocess.run(
                ["docker", "-H", self.host, "load"], stdin=saving.stdout, stdout=subprocess.DEVNULL, check=True
            )
        assert saving.returncode == 0

    def left(self) -> list[str]:
        """The containers and volumes that it has."""
        return (
            self.docker("ps", "-aq").stdout.decode().split() + self.docker("volume", "ls", "-q").stdout.decode().split()
        )

    def clear(self) -> None:
        """End it with everything it started, and unmount whatever it left."""
        if self._process is not None and self._process.poll() is None:
            self.end(signal.SIGTERM)
        for process in _processes_of(self._directory):
            os.kill(process, signal.SIGKILL)
        wait_until(lambda: not _processes_of(self._directory), "the engine's processes are gone")
        for place in sorted(_mounts_below(self._directory), reverse=True):
            subprocess.run(["umount", "-l", place], check=True)
        shutil.rmtree(self._directory)


def _processes_of(directory: Path) -> list[int]:
    """What the engine over a directory started: all of it names that in its arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                argv = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(directory) + b"/" in argv:
                found.append(int(entry.name))
    return found


def _mounts_below(directory: Path) -> list[str]:
    table = Path("/proc/self/mounts").read_text()
    places = [
        re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split()[1]) for line in table.splitlines()
    ]
    return [place for place in places if Path(place).is_relative_to(directory)]


@contextmanager
def private_engine(image: str, kind: str = "docker") -> Iterator[PrivateEngine]:
    """An engine of one's own that has an image: of one of `KINDS`, `docker with volumes on an overlay` or `with gVisor`.

    Skips where none can be started, fails there in CI.
    """
    if os.geteuid() != 0:
        pytest.skip("starting an engine takes root")
    need_program("podman" if kind.endswith("podman") else "dockerd", _PATH)
    if kind.startswith("rootless"):
        need_program("newuidmap", _PATH)
    if kind == "rootless docker":
        need_program("rootlesskit", _PATH)
    if kind == "docker with gVisor" and shutil.which("runsc", path=_PATH) is None:
        pytest.skip("runsc isn't installed")
    with ExitStack() as stack:
        user = stack.enter_context(ordinary_user()) if kind in _OF_USERS else None
        # Not below pytest's own directory: a socket's path must be short.
        engine = PrivateEngine(kind, Path(tempfile.mkdtemp(prefix="wb-engine-")), user)
        stack.callback(engine.clear)
        engine.start()
        engine.load(image)
        yield engine
