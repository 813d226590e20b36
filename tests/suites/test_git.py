"""git's own suite, in the sandbox's mount and on plain disk."""

from __future__ import annotations

from tests.suites.fetched import FULL
from tests.suites.sides import Sides, differences
from tests.trees import snapshot

_SCRIPTS = [
    *("t0003-attributes", "t0050-filesystem", "t1001-read-tree-m-2way", "t1004-read-tree-m-u-wf", "t1050-large"),
    *("t1400-update-ref", "t1450-fsck", "t2000-conflict-when-checking-files-out", "t2003-checkout-cache-mkdir"),
    *("t2004-checkout-cache-temp", "t2007-checkout-symlink", "t2021-checkout-overwrite", "t2200-add-update"),
    *("t2400-worktree-add", "t2401-worktree-prune", "t2403-worktree-move", "t3600-rm", "t3700-add", "t3903-stash"),
    *("t4115-apply-symlink", "t4122-apply-symlink-inside", "t4129-apply-samemode", "t5000-tar-tree", "t5304-prune"),
    *("t5601-clone", "t6500-gc", "t7001-mv", "t7061-wtstatus-ignore", "t7101-reset-empty-subdirs", "t7102-reset"),
    *("t7110-reset-merge", "t7201-co", "t7300-clean"),
]
_FULL = [
    *("t0021-conversion", "t0027-auto-crlf", "t1300-config", "t1500-rev-parse", "t2013-checkout-submodule"),
    *("t3200-branch", "t3404-rebase-interactive", "t5300-pack-object", "t5510-fetch", "t7063-status-untracked-cache"),
    *("t7400-submodule-basic", "t7508-status", "t7600-merge", "t7700-repack"),
]

# Each case is a line of TAP: its number, what it is, and TODO where git itself expects it to fail.
_RUN = """
import json, os, re, shutil, signal, subprocess, sys, tempfile
top = sys.argv[1]
found = {}
for script in sys.argv[2:]:
    place, results = tempfile.mkdtemp(dir=top), tempfile.mkdtemp()
    environment = {**os.environ, "HOME": place, "TEST_OUTPUT_DIRECTORY": results}
    argv = ["./" + script + ".sh", "--no-color", "--root=" + place]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(argv, cwd="/opt/git/t", env=environment, start_new_session=True, **pipes)
    try:
        output = process.communicate(timeout=400)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0]
    cases = {}
    for line in output.decode("utf-8", "replace").splitlines():
        case = re.match("(ok|not ok) (.*?)( # (TODO|SKIP|skip).*)?$", line)
        if case:
            cases[case[2]] = case[1] + " " + (case[4] or "").lower()
    cases["(exit code)"] = str(process.returncode)
    if process.returncode:
        cases["(output)"] = output.decode("utf-8", "replace").replace(place, "")[-500:]
    found[script] = cases
    shutil.rmtree(place)
print(json.dumps(found))
"""


def test_gits_own_suite_ends_in_the_mount_as_it_does_on_disk(sides: Sides) -> None:
    before = snapshot(sides.mount)
    plain, mounted = sides.outcomes(_RUN, _SCRIPTS + (_FULL if FULL else []))
    assert differences(plain, mounted) == []
    ends = [end for cases in mounted.values() for end in cases.values()]
    assert ends.count("ok ") > 1200
    assert snapshot(sides.mount) == before
