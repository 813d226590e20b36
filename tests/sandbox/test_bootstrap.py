"""How a program gets into a sandbox over its standard input."""

from __future__ import annotations

import marshal
import subprocess
import sys

import pytest

from workbench.sandbox import bootstrap
from workbench.sandbox.bootstrap import Program

SOURCE = b"import sys; print('from source', sys.argv[1:], sys.stdin.read())"


def run(program: Program) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, *program.loader(("argument",), {"NOFILE": 100})[1:]]
    return subprocess.run(argv, input=program.sent + b"input", capture_output=True, check=False)


def compiled(source: str) -> bytes:
    return marshal.dumps(compile(source, "program", "exec"))


def test_what_was_compiled_is_run_where_the_python_there_has_the_same_bytecode() -> None:
    done = run(Program(SOURCE, compiled("import sys; print('compiled', sys.argv[1:], sys.stdin.read())")))
    assert done.stdout == b"compiled ['argument'] input\n"


def test_a_python_of_another_version_compiles_the_source_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "MAGIC_NUMBER", b"\0\0\r\n")
    assert run(Program(SOURCE, b"nothing that could be run")).stdout == b"from source ['argument'] input\n"


def test_without_anything_compiled_the_source_is_run() -> None:
    assert run(Program(SOURCE)).stdout == b"from source ['argument'] input\n"


def test_a_stream_that_ends_early_is_said() -> None:
    program = Program(SOURCE)
    argv = [sys.executable, *program.loader((), {})[1:]]
    done = subprocess.run(argv, input=program.sent[:-1], capture_output=True, check=False)
    assert b"the stream ended before the supervisor had arrived" in done.stderr


def test_the_supervisor_that_is_sent_is_the_file_and_what_this_python_makes_of_it() -> None:
    program = bootstrap.supervisor()
    code = marshal.loads(program.compiled)
    assert code.co_names == compile(program.source, code.co_filename, "exec").co_names
