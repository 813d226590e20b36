"""Programs that load a filesystem and check what it gives back, in the sandbox's mount and on plain disk."""

from __future__ import annotations

import json

from tests.suites.fetched import FULL
from tests.suites.sides import Sides
from tests.trees import snapshot

_STRESSORS = (
    *(
        "access",
        "chdir",
        "chmod",
        "chown",
        "copy-file",
        "dentry",
        "dir",
        "dirdeep",
        "dirmany",
        "fallocate",
        "fcntl",
        "fiemap",
    ),
    *("filename", "flock", "fstat", "hdd", "iomix", "link", "lockf", "open", "rename", "seek", "sendfile", "symlink"),
    *("touch", "utime", "xattr"),
)

# stress-ng says of each stressor how it ended; fio counts what didn't verify.
_RUN = """
import json, os, re, shutil, subprocess, sys, tempfile
top, seconds, size, *stressors = sys.argv[1:]
found = {}
def run(*argv):
    place = tempfile.mkdtemp(dir=top)
    done = subprocess.run(argv, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    shutil.rmtree(place)
    return done.returncode, done.stdout.decode("utf-8", "replace")
for name in stressors:
    limits = ["--hdd-bytes", "16m"] if name == "hdd" else []
    code, said = run("stress-ng", "--temp-path", ".", "--verify", "-t", seconds, "--" + name, "1", *limits)
    found[name] = [code, "" if code == 0 else said[-1000:]]
for name in ("write", "randwrite", "randrw"):
    code, said = run("fio", "--name=" + name, "--rw=" + name, "--bs=4k", "--size=" + size, "--verify=crc32c",
                     "--do_verify=1", "--verify_fatal=1", "--fallocate=none", "--end_fsync=1", "--output-format=json")
    jobs = json.loads(said[said.index("{"):])["jobs"] if "{" in said else []
    found["fio " + name] = [code, [job["error"] for job in jobs] if code == 0 else said[-1000:]]
print(json.dumps(found))
"""

# What an application does with a database: write-ahead log, many transactions, a second connection, a check of the whole.
_DATABASE = """
import json, os, sqlite3, sys
os.chdir(sys.argv[1])
answers = []
for mode in ("wal", "delete", "truncate"):
    path = mode + ".db"
    writer, reader = sqlite3.connect(path), sqlite3.connect(path)
    answers.append(writer.execute("pragma journal_mode=" + mode).fetchone()[0])
    writer.execute("create table t (n integer primary key, text blob)")
    for number in range(300):
        with writer:
            writer.execute("insert into t values (?, ?)", (number, os.urandom(number * 10)))
            if number % 3 == 0:
                writer.execute("delete from t where n = ?", (number // 2,))
    answers.append(reader.execute("select count(*), sum(length(text)) from t").fetchone())
    writer.execute("vacuum")
    answers.append(reader.execute("pragma integrity_check").fetchone()[0])
    reader.close(), writer.close()
    answers.append(sorted(name for name in os.listdir(".") if name.startswith(mode)))
    os.unlink(path)
print(json.dumps(answers))
"""


def test_stressors_and_verified_writes_end_in_the_mount_as_they_do_on_disk(sides: Sides) -> None:
    before = snapshot(sides.mount)
    seconds, size = ("3", "64m") if FULL else ("1", "16m")
    plain, mounted = (json.loads(text) for text in sides.run(_RUN, seconds, size, *_STRESSORS))
    # What a busy machine kept from its start in its time gets it once more.
    if unwell := [name for name in _STRESSORS if plain[name] != [0, ""] or mounted[name] != [0, ""]]:
        for outcomes, text in zip((plain, mounted), sides.run(_RUN, "10", size, *unwell), strict=True):
            outcomes.update(json.loads(text))
    assert mounted == plain
    verified = {f"fio {name}": [0, [0]] for name in ("write", "randwrite", "randrw")}
    assert mounted == {name: [0, ""] for name in _STRESSORS} | verified
    assert snapshot(sides.mount) == before


def test_a_database_in_the_mount_answers_as_on_disk_in_every_journal_mode(sides: Sides) -> None:
    plain, mounted = (json.loads(text) for text in sides.run(_DATABASE))
    assert mounted == plain
    assert [mounted[0], mounted[4], mounted[8]] == ["wal", "delete", "truncate"]
    assert mounted[2] == mounted[6] == mounted[10] == "ok"
