"""`doctor` where sandboxes can be had, and where none can: what it picks is what it found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.needed import without_namespaces
from workbench.protocol.reports import DoctorReport


def _doctor(workspace: Path, *prefix: str) -> tuple[int, DoctorReport]:
    argv = [*prefix, sys.executable, "-m", "workbench", "doctor", "--json", "-w", str(workspace)]
    environment = {**os.environ, "DOCKER_HOST": f"unix://{workspace}/none.sock"}
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, check=False)
    return done.returncode, DoctorReport.model_validate_json(done.stdout)


def _problems(report: DoctorReport) -> set[str]:
    return {finding.topic for finding in report.findings if finding.state == "problem"}


def test_what_worked_before_is_not_picked_where_it_no_longer_works(state: Path, repo: Path) -> None:
    prefix = without_namespaces()
    for _ in range(2):
        code, report = _doctor(repo)
        assert (code, report.picked, _problems(report)) == (0, "namespace", {"docker"})
        code, report = _doctor(repo, *prefix)
        assert (code, report.picked, _problems(report)) == (1, None, {"docker", "namespace"})
        assert "docker: No container engine answers" in report.why
