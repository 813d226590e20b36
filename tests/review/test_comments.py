"""What a person says in a review waits for the agent, whoever is told of it or killed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.protocol.records import CommentRecord
from workbench.review.comments import Comments

CODE = """
import os, sys
from workbench.review import comments
number = int(sys.argv[2])
def count(function):
    def counted(*arguments):
        global number
        number -= 1
        if number < 0:
            os._exit(9)
        return function(*arguments)
    return counted
for name in ("open", "close", "fsync", "unlink", "write", "listdir"):
    setattr(comments.os, name, count(getattr(os, name)))
comments.fcntl.flock = count(comments.fcntl.flock)
kept = comments.Comments(sys.argv[1])
kept.forget([one for one in kept.all() if one.text == "told"])
kept.all()
"""


@pytest.mark.parametrize("number", range(24))
def test_forgetting_some_keeps_the_others_also_across_a_kill(tmp_path: Path, number: int) -> None:
    comments = Comments(os.fspath(tmp_path))
    said = [CommentRecord(at_ns=at, path=b"a", text=text) for at, text in enumerate(("told", "not yet", "nor this"))]
    Path(comments.path).write_text("".join(f"{one.model_dump_json()}\n" for one in said))
    done = subprocess.run([sys.executable, "-c", CODE, os.fspath(tmp_path), str(number)], check=False)
    left = comments.all()
    assert left in ((said[1:],) if done.returncode == 0 else (said, said[1:]))
    assert os.listdir(tmp_path) == ["comments.jsonl"]
