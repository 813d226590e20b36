"""A command to run in the sandbox, and what became of it.

Plain dataclasses over the standard library's JSON, not pydantic models: they stand on the path of a warm command, where
an import of 40 ms would cost more than the command, and their strings carry undecodable bytes as lone surrogates
(`os.fsdecode`), which pydantic's JSON refuses.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Command:
    """What to run.

    `argv` and `cwd` are strings as of `os.fsdecode`; `cwd` is a path inside the sandbox, relative to the workspace's own,
    which it is where it's empty. `environment` is laid over the sandbox's own. `timeout_ms` 0 is none. `output_limit`
    bounds, in bytes, what is kept of each output stream: the first and the last half are kept, and what lies between is
    counted; 0 streams everything as it comes and keeps nothing. With `tty` there is one output stream, `stdout`. `stdin`
    False closes it. `label` is what listings show in the place of `argv`.
    """

    argv: tuple[str, ...]
    cwd: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    tty: bool = False
    rows: int = 24
    columns: int = 80
    stdin: bool = False
    timeout_ms: int = 0
    output_limit: int = 0
    label: str = ""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended.

    `exit_code` is the command's own, 128 + n where signal n killed it (`signal` then names it, such as `SIGKILL`).
    `stdout` and `stderr` are what `output_limit` let through, empty where it was 0. `omitted_bytes` counts both streams.
    `stopped_processes` counts what the command had left running and was killed with it. `out_of_memory` and
    `out_of_processes` say that the sandbox hit that limit while the command ran (False also where nobody counts that).
    `tmp_full` and `home_full` say of a command that failed that there was no room in /tmp, or the home directory, at its end.
    `ended_by` is empty, or what ended the command from outside: `commit`, `discard`, `stop`, `cancel`, `kill`,
    `disk_limit` or `disk_full` (the overlay grew over its limit, or nearly filled the disk), ….

    `duration_ms` is by the clock, the CPU times are those of all its processes, and `memory_peak_bytes` is of the largest
    one: never less than what the process takes that starts it, about 10 MB.
    """

    exit_code: int
    signal: str = ""
    timed_out: bool = False
    duration_ms: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    omitted_bytes: int = 0
    stopped_processes: int = 0
    out_of_memory: bool = False
    ended_by: str = ""
    out_of_processes: bool = False
    user_cpu_ms: int = 0
    system_cpu_ms: int = 0
    memory_peak_bytes: int = 0
    tmp_full: bool = False
    home_full: bool = False
