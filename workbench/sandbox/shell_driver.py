"""Between a persistent shell and who uses it: runs inside the sandbox, standard library only, Python 3.8 or later.

It speaks the frames of `frames.py` on descriptors 0 and 1, the id being the number of the run: RUN with a script comes,
STDOUT, STDERR and RESULT go; INPUT_CLOSED says that the shell has ended. A script reaches the shell as one quoted word,
so nothing in it can be taken for anything of ours; its status comes back over a pipe of its own, which is closed to the
script, so nothing it prints can.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import struct
import sys
import time

HEADER = struct.Struct("!IcI")
CHUNK = 64 << 10
RUN, STDOUT, STDERR, RESULT, INPUT_CLOSED = b"R", b"O", b"E", b"X", b"I"
PIPE_CAPACITY = 1 << 20
STATUS = 9

# `set -e` and the like hold for the script that says it: the next one begins as in any shell. The names are those that
# a script could have given another meaning.
SCRIPT = b"""\
\\unset -f command eval set printf; \\command eval %s </dev/null 9>&-
{ __workbench=$?; \\unset -f unset set printf; \\set +evx; } 2>/dev/null; \\printf '%%s %%s\\n' %d "$__workbench" >&9
"""


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


def no_operation(_number: int, _frame: object) -> None:
    """Handle a signal by doing nothing, which a shell doesn't inherit."""


class Driver:
    """One shell, from its start to its end."""

    def __init__(self, program: str) -> None:
        script, self.script = os.pipe()
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        self.status, status = os.pipe()
        actions = [
            (os.POSIX_SPAWN_DUP2, fd, to) for fd, to in ((script, 0), (stdout, 1), (stderr, 2), (status, STATUS))
        ]
        # This interpreter ignores two signals, and a group of its own keeps the shell's `kill 0` from us.
        self.shell = os.posix_spawn(
            program,
            [program],
            os.environ,
            file_actions=actions,
            setpgroup=0,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
        for fd in (script, stdout, stderr, status):
            os.close(fd)
        for fd in (self.stdout, self.stderr, self.status):
            os.set_blocking(fd, False)
        self.number = 0
        self.answered = b""
        self.since = time.monotonic()
        self.used = (0, 0)

    def send(self, kind: bytes, payload: bytes) -> None:
        write_all(1, HEADER.pack(len(payload), kind, self.number) + payload)

    def run(self, wake: int) -> None:
        poll = select.poll()
        for fd in (0, self.stdout, self.stderr, self.status, wake):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            for fd, kind in ((self.stdout, STDOUT), (self.stderr, STDERR)):
                if fd in ready and not self.take(fd, kind, CHUNK):
                    poll.unregister(fd)
            if self.status in ready:
                data = self.read(self.status)
                if data == b"":
                    poll.unregister(self.status)
                self.answered += data or b""
                if self.answered.endswith(b"\n"):
                    self.answer()
            if wake in ready:
                os.read(wake, 4096)
                self.collect()
            if 0 in ready:
                length, kind, self.number = HEADER.unpack(read_exactly(HEADER.size))
                script = read_exactly(length)
                if kind == RUN:
                    self.begin(script)

    def begin(self, script: bytes) -> None:
        self.since, self.used = time.monotonic(), self.usage()
        # After a backslash and one newline, or none, bash would go on reading in what follows the quotes.
        quoted = b"'" + script.replace(b"'", b"'\\''") + b"\n\n'"
        try:
            write_all(self.script, SCRIPT % (quoted, self.number))
        except BrokenPipeError:
            return  # it has just ended, which is said

    def read(self, fd: int) -> bytes | None:
        """What is there; None where nothing is, empty at the end."""
        try:
            return os.read(fd, CHUNK)
        except BlockingIOError:
            return None

    def take(self, fd: int, kind: bytes, most: int) -> bool:
        """Pass on what is there by now, up to so much; False at the end."""
        while most > 0:
            data = self.read(fd)
            if data is None:
                return True
            if not data:
                return False
            most -= len(data)
            self.send(kind, data)
        return True

    def usage(self) -> tuple[int, int]:
        """CPU time of the shell and of what it has waited for, in ms: its own and the kernel's for it."""
        try:
            with open(f"/proc/{self.shell}/stat", "rb") as file:
                line = file.read()
        except OSError:
            return self.used
        user, system, more_user, more_system = map(int, line[line.rfind(b")") + 2 :].split()[11:15])
        tick = 1000 // os.sysconf("SC_CLK_TCK")
        return (user + more_user) * tick, (system + more_system) * tick

    def finish(self, kind: bytes, code: int, name: str = "") -> None:
        # What the script itself wrote is in the pipes by now; whoever still writes to them is in the background.
        for fd, stream in ((self.stdout, STDOUT), (self.stderr, STDERR)):
            self.take(fd, stream, PIPE_CAPACITY)
        used = self.usage()
        answer = {
            "exit_code": code,
            "signal": name,
            "duration_ms": int((time.monotonic() - self.since) * 1000),
            "user_cpu_us": (used[0] - self.used[0]) * 1000,
            "system_cpu_us": (used[1] - self.used[1]) * 1000,
        }
        self.send(kind, json.dumps(answer).encode())

    def answer(self) -> None:
        number, _, code = self.answered.partition(b" ")
        self.answered = b""
        if number == b"%d" % self.number:
            self.finish(RESULT, int(code))

    def collect(self) -> None:
        pid, status = os.waitpid(self.shell, os.WNOHANG)
        if pid:
            if os.WIFSIGNALED(status):
                number = os.WTERMSIG(status)
                known = number in signal.Signals.__members__.values()
                self.finish(INPUT_CLOSED, 128 + number, signal.Signals(number).name if known else f"SIG{number}")
            else:
                self.finish(INPUT_CLOSED, os.WEXITSTATUS(status))
            os._exit(0)


def main() -> None:
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, no_operation)
    program = next((path for path in map(shutil.which, sys.argv[1:]) if path), None)
    if program is None:
        sys.exit("no shell: " + " ".join(sys.argv[1:]))
    Driver(program).run(wake)


if __name__ == "__main__":
    main()
