"""What has to hold on whatever engine DOCKER_HOST names, as whoever runs this: `pytest tests/sandbox/elsewhere.py`."""

from __future__ import annotations

import os
from pathlib import Path

import anyio

from tests.sandbox.support import IMAGE, spec
from tests.sandbox.test_contract import Kept
from workbench.sandbox import probe


class TestElsewhere(Kept):
    backend = "docker"


def test_the_probe_takes_it_with_our_own_files_and_says_which_limits_do_not_hold(tmp_path: Path) -> None:
    what = spec("docker", uid=os.geteuid() or 1234, gid=os.getegid() or 1234, image=IMAGE)
    result = anyio.run(probe.probe_docker, what, str(tmp_path))
    assert (result.ok, result.sharing, result.reason) == (True, "mounted", "")
    assert os.environ["WORKBENCH_TEST_LIMITS"] == str(not any("doesn't enforce" in line for line in result.details))
