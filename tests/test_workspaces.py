from __future__ import annotations
import os
import pytest
from pathlib import Path
from tests.bench import Bench
from tests.trees import snapshot, make_tree
NAMES = [b"co:lon", b"com,ma", b"back\\slash", b" sp  ace ", "ünï-ç-日本".encode(), b"\xff\xfe-bytes", b"new\nline", b"-dash", b"quo'te\"$HOME`x`", b"tab\t*?[a]", b"x"*255, b"%s{}%n", b"lowerdir=", b"userxattr"]
@pytest.mark.parametrize("name", NAMES)
def test_path(engine, state, tmp_path, name):
    w = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(w)
    make_tree(Path(os.fsdecode(w)))
    b = Bench(w)
    before = snapshot(w)
    print(b.sh("pwd; echo new > new; rm -r docs; mv src moved; cd moved; git init -q . ; git status --short"))
    assert snapshot(w) == before
    view = b.inside()
    ch = b.changes()
    print([c.path for c in ch.shown], ch.left)
    b.commit()
    after = snapshot(w, times=False)
    assert {k:v for k,v in view.items() if not k.startswith(b"moved/.git")} == after
    import subprocess, sys
    from tests.conftest import ROOT
    r = subprocess.run([sys.executable, "-m", "workbench", "exec", "-w", w, "--", "sh", "-c", "echo more>>new; cat new"], capture_output=True, cwd=ROOT)
    print(r)
    assert r.returncode == 0
    r = subprocess.run([sys.executable, "-m", "workbench", "status", "-w", w, "--json"], capture_output=True, cwd=ROOT); print(r)
    assert r.returncode == 0
    r = subprocess.run([sys.executable, "-m", "workbench", "status"], capture_output=True, cwd=w, env={**os.environ,"PYTHONPATH":str(ROOT)}); print(r)
    assert r.returncode == 0
    b.stop()
