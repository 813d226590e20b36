"""CPython's own tests of files, in the sandbox's mount and on plain disk."""

from __future__ import annotations

from tests.suites.fetched import FULL
from tests.suites.sides import Sides, differences
from tests.trees import snapshot

_MODULES = [
    *("test_os", "test_posix", "test_posixpath", "test_genericpath", "test_shutil", "test_pathlib", "test_glob"),
    *("test_tempfile", "test_fileio", "test_file", "test_file_eintr", "test_largefile", "test_bufio", "test_fileinput"),
    *("test_zipfile", "test_tarfile", "test_mmap", "test_mailbox", "test_dbm", "test_dbm_dumb", "test_dbm_gnu"),
    *("test_dbm_ndbm", "test_shelve", "test_fcntl", "test_filecmp", "test_stat", "test_py_compile"),
    *("test_venv", "test_linecache", "test_zipapp", "test_zipimport", "test_gzip", "test_unicode_file_functions"),
]
_FULL = ["test_io", "test_import", "test_compileall", "test_bz2", "test_lzma", "test_unicode_file", "test_netrc"]

# One process a module, with a time limit of its own; the results come as JUnit's XML, as they are the same in all versions.
_RUN = """
import json, os, shutil, subprocess, sys, tempfile
from xml.etree import ElementTree
top = sys.argv[1]
found = {}
for module in sys.argv[2:]:
    place = tempfile.mkdtemp(dir=top)
    report = os.path.join(tempfile.mkdtemp(), "report.xml")
    argv = [sys.executable, "-m", "test", "-W", "--timeout", "240", "--tempdir", place, "--junit-xml", report, module]
    environment = {**os.environ, "TMPDIR": place, "HOME": place}
    done = subprocess.run(argv, cwd=place, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=400)
    cases = {}
    if os.path.exists(report):
        for case in ElementTree.parse(report).iter("testcase"):
            ends = [end.tag for end in case if end.tag in ("failure", "error", "skipped")]
            cases[case.get("name")] = ends[0] if ends else case.get("status") or "ok"
    cases["(exit code)"] = str(done.returncode)
    if len(cases) == 1:
        cases["(output)"] = (done.stdout + done.stderr).decode("utf-8", "replace").replace(top, "")[-500:]
    found[module] = cases
    shutil.rmtree(place)
print(json.dumps(found))
"""


def test_cpythons_own_file_tests_end_in_the_mount_as_they_do_on_disk(sides: Sides) -> None:
    before = snapshot(sides.mount)
    plain, mounted = sides.outcomes(_RUN, _MODULES + (_FULL if FULL else []))
    assert differences(plain, mounted) == []
    assert [module for module, cases in mounted.items() if len(cases) <= 2] == []
    ends = [end for cases in mounted.values() for end in cases.values()]
    assert ends.count("run") + ends.count("ok") > 2500
    assert snapshot(sides.mount) == before
