"""Other agents' sessions, listed, summed up and searched, against tools that do the same."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.rows import Row

SESSIONS = int(os.environ.get("WORKBENCH_SESSIONS", "10000"))
_LARGE = (1_000, 100_000_000)  # every so manieth session is so large, in bytes
_ROUNDS = 3


def make_sessions(home: Path, count: int = SESSIONS) -> None:
    """Sessions of Claude Code in a home, most of them small, by the same dice each time."""
    dice = random.Random(7)
    every, large = _LARGE
    for number in range(count):
        folder = home / ".claude" / "projects" / f"-work-p{number % 50}"
        folder.mkdir(parents=True, exist_ok=True)
        size = large if number % every == every - 1 else int(dice.lognormvariate(9.5, 1.2))
        _make_session(folder / f"{number:08x}-0000-4000-8000-000000000000.jsonl", number, size, dice)


def _make_session(path: Path, number: int, size: int, dice: random.Random) -> None:
    filler = "the parser reads what it is given, and says so. " * 40
    chain = {"sessionId": path.stem, "cwd": f"/work/p{number % 50}", "version": "2.1.0", "isSidechain": False}
    written = turn = 0
    with path.open("w") as file:
        while written < size:
            day, second = 1 + number % 28, turn % 86_400
            at = f"2026-03-{day:02}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.000Z"
            about = {"timestamp": at, "requestId": f"req_{number}_{turn}", **chain}
            used = {
                "input_tokens": 9,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 1000 + turn,
                "output_tokens": dice.randrange(900),
            }
            id = f"msg_{number}_{turn}"
            call = {"type": "tool_use", "id": f"toolu_{number}_{turn}", "name": "Read", "input": {"file_path": "/a"}}
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": filler[: dice.randrange(1, 1900)]}
            reply = {"id": id, "role": "assistant", "model": "claude-opus-4-8", "usage": used}
            text = {"type": "text", "text": filler[:300]}
            for kind, uuid, message in (
                ("user", "a", {"role": "user", "content": f"question {turn} of session {number}"}),
                ("assistant", "b", {**reply, "content": [text]}),
                ("assistant", "c", {**reply, "content": [call]}),
                ("user", "d", {"role": "user", "content": [result]}),
            ):
                record = {"type": kind, "uuid": f"{uuid}{turn}", "message": message, **about}
                line = json.dumps(record, separators=(",", ":"))
                written += file.write(f"{line}\n")
            turn += 1


def measured(*argv: str, home: Path) -> tuple[float, int, str]:
    """The median time in ms of a whole process, its greatest memory in MB, and what it wrote."""
    environment = {**os.environ, "HOME": str(home), "PWD": str(home), "TZ": "UTC"}
    code = (
        "import json, resource, subprocess, sys, time\n"
        "start = time.perf_counter()\n"
        "out = subprocess.run(sys.argv[1:], check=True, capture_output=True, text=True).stdout\n"
        "took = (time.perf_counter() - start) * 1000\n"
        "print(json.dumps([took, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024, out]))\n"
    )
    runs = []
    for _ in range(_ROUNDS):
        done = subprocess.run(
            [sys.executable, "-c", code, *argv], env=environment, check=True, capture_output=True, text=True
        )
        runs.append(json.loads(done.stdout))
    took, memory, out = sorted(runs)[_ROUNDS // 2]
    return took, memory, out


def transcripts() -> Iterator[Row]:
    """Listing, usage and search over many sessions; a peer that isn't on the PATH has no row of its own."""
    own = str(Path(sys.executable).with_name("workbench"))
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        make_sessions(home)
        size = sum(path.stat().st_size for path in home.rglob("*.jsonl"))
        what = f"{SESSIONS:,} sessions, {size / 1e9:.1f} GB"
        took, memory, _ = measured(own, "transcripts", "list", "--limit", "0", "--json", home=home)
        yield Row(f"list {what} ({memory} MB)", took, "", 0, "no peer that only lists")
        took, memory, out = measured(own, "transcripts", "usage", "--by", "day", "--json", home=home)
        total = json.loads(out)[-1]
        peer = shutil.which("ccusage")
        if peer is None:
            yield Row(f"usage of {what} ({memory} MB)", took, "ccusage", 0, "ccusage isn't on the PATH")
        else:
            theirs, other, out = measured(peer, "claude", "daily", "--json", "--offline", home=home)
            said = json.loads(out)["totals"]
            same = said["outputTokens"] == total["output_tokens"]
            against = f"ccusage ({other} MB, {'the same' if same else 'another'} total)"
            yield Row(f"usage of {what} ({memory} MB)", took, against, theirs)
        took, memory, _ = measured(own, "transcripts", "search", "question 3 of session 77", "--json", home=home)
        yield Row(f"search {what} ({memory} MB)", took, "", 0, "no peer that needs no index")
