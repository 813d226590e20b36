from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.review.changeset import Included, Left
from workbench.review.compare import change_set
from workbench.review.ignore import IgnoreRules
from workbench.vfs.ignore_patterns import PatternList


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return path


def _git_says(directory: bytes, paths: list[bytes], home: str = "/nonexistent") -> set[bytes]:
    told = subprocess.run(
        ["git", "check-ignore", "-z", "--stdin", "--no-index"],
        input=b"".join(path + b"\0" for path in paths),
        cwd=directory,
        env={"PATH": os.environ["PATH"], "HOME": home, "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
    )
    assert told.returncode in (0, 1), told.stderr
    return set(told.stdout.split(b"\0")) - {b""}


# Names, one letter or two, so that patterns and paths meet.
_ATOMS = [
    *(
        b"a",
        b"a",
        b"d",
        b"*",
        b"*a",
        b"a*",
        b"*d",
        b"/*",
        b"b",
        b"*",
        b"?",
        b"**",
        b"***",
        b"/",
        b"!",
        b"\\",
        b" ",
        b"#",
        b".",
        b"-",
    ),
    *(
        b"[ab]",
        b"[!a]",
        b"[^a]",
        b"[a-c]",
        b"[",
        b"]",
        b"[]a]",
        b"[[:alpha:]]",
        b"[[:digit:]-b]",
        b"[[:none:]]",
        b"[a-",
    ),
    *(b"**/", b"/**", b"/**/", b"a/", b"\\*", b"\\a", b"[\\]]", b"[[:", b"[a-]", b"[b-a]", b"\xff", b"\r", b"\t"),
]
_PATHS = [
    *(b"a", b"b", b"c", b"ab", b"a b", b"a ", b"#a", b"!a", b"a*", b"*", b"]", b"-", b"\xff", b"\\", b".a", b"1"),
    *(
        b"d/a",
        b"d/b",
        b"d/d/a",
        b"d/d/b",
        b"a.d/a",
        b"a.d/b/a",
        b"b.d/a.d/c",
        b"c.d/a/x",
        b"c.d/a/b.d/x",
        b"ab.d/b",
        b"\xff.d/a",
    ),
]
_FILES = (b".gitignore", b"d/.gitignore", b"c.d/.gitignore", b"c.d/a/.gitignore", b".git/info/exclude")
_patterns = st.lists(
    st.lists(st.sampled_from(_ATOMS), min_size=1, max_size=6).map(b"".join), min_size=1, max_size=5
).map(b"\n".join)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    path = tmp_path_factory.mktemp("ignored") / "lower"
    path.mkdir()
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    directory = os.fsencode(path)
    for relative in _PATHS:
        full = os.path.join(directory, relative)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if not os.path.isdir(full):
            with open(full, "wb"):
                pass
    return directory


def _everything(directory: bytes) -> list[tuple[bytes, bool]]:
    found = []
    for parent, directories, files in os.walk(directory):
        if parent == directory:
            directories.remove(b".git")
        for name in directories + files:
            full = os.path.join(parent, name)
            found.append((os.path.relpath(full, directory), os.path.isdir(full)))
    return found


def _compare(directory: bytes) -> None:
    from workbench.vfs.local import LocalStorage

    paths = _everything(directory)
    with LocalStorage(directory) as lower:
        rules = IgnoreRules(lower)
        ours = {path for path, is_dir in paths if rules.is_ignored(path, is_dir=is_dir)}
    assert ours == _git_says(directory, [path for path, _ in paths])


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(content=_patterns)
def test_one_ignore_file_means_what_it_means_to_git(repository, content) -> None:
    with open(os.path.join(repository, b".gitignore"), "wb") as file:
        file.write(content)
    try:
        _compare(repository)
    finally:
        os.unlink(os.path.join(repository, b".gitignore"))


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(contents=st.fixed_dictionaries(dict.fromkeys(_FILES, _patterns)))
def test_ignore_files_at_every_level_mean_together_what_they_mean_to_git(repository, contents) -> None:
    for name, content in contents.items():
        with open(os.path.join(repository, name), "wb") as file:
            file.write(content)
    try:
        _compare(repository)
    finally:
        for name in contents:
            os.unlink(os.path.join(repository, name))


@pytest.mark.parametrize(
    "pattern", [b"a**/a", b"a.d**/a", b"/a.d**/a", b"a.d/**a", b"a.d/b**", b"**\\/a", b"a.d/**/", b"/**"]
)
def test_stars_in_odd_places_mean_what_they_mean_to_git(repository, pattern) -> None:
    with open(os.path.join(repository, b".gitignore"), "wb") as file:
        file.write(pattern)
    _compare(repository)


@pytest.mark.parametrize(
    "pattern", [b"*a" * 30 + b"*b", b"**/a*/" * 30 + b"b", b"**\\/a/" * 20 + b"b", b"[a]*" * 40 + b"b"]
)
def test_a_pattern_of_many_stars_does_not_hang(pattern) -> None:
    patterns = PatternList(pattern)
    assert patterns.match(b"a" * 255, b"a" * 255, is_dir=False) is None
    assert patterns.match(b"/".join([b"a"] * 2000), b"a", is_dir=False) is None


@pytest.mark.parametrize(
    ("content", "ignored", "kept"),
    [
        (b"*.o\n!keep.o\n", [b"a.o", b"d/a.o"], [b"keep.o", b"d/keep.o", b"a.c"]),
        (b"/build\n", [b"build"], [b"d/build"]),
        (b"a\r\nb  \nc\\ \n", [b"a", b"b", b"c "], [b"c", b"b  "]),
        (b"\xef\xbb\xbfa\n", [b"a"], [b"\xef\xbb\xbfa"]),
        (b"d/**/x\n", [b"d/x", b"d/a/b/x"], [b"x"]),
        (b"#a\n\\#b\n", [b"#b"], [b"#a"]),
        (b"a", [b"a"], [b"b"]),
        (b"", [], [b"a"]),
    ],
)
def test_patterns(content, ignored, kept) -> None:
    patterns = PatternList(content)
    for path in ignored:
        assert patterns.match(path, path.rpartition(b"/")[2], is_dir=False) is True
    for path in kept:
        assert not patterns.match(path, path.rpartition(b"/")[2], is_dir=False)


def test_nothing_below_an_ignored_directory_comes_back(layers) -> None:
    layers.git("init", "-q")
    layers.write("lower", b".gitignore", b"build/\n!build/keep\n")
    layers.write("upper", b"build/keep", b"1")
    layers.write("upper", b"build/sub/x", b"1")
    assert layers.told() == {}
    assert layers.left() == {b"build": (Left.IGNORED, 2)}


def test_an_ignored_directory_is_one_counted_entry(layers) -> None:
    layers.git("init", "-q")
    layers.write("lower", b".gitignore", b"node_modules\n*.log\n")
    layers.write("lower", b"node_modules/old/index.js", b"1")
    for number in range(20):
        layers.write("upper", b"node_modules/new/%d.js" % number, b"1")
    layers.whiteout(b"node_modules/old")
    layers.write("upper", b"a.log", b"1")
    layers.write("upper", b"src/a.py", b"1")
    assert layers.told() == {b"src/a.py": "added"}
    assert layers.left() == {b"node_modules": (Left.IGNORED, 21), b"a.log": (Left.IGNORED, 1)}


def test_a_directory_that_was_only_copied_up_is_not_counted(layers) -> None:
    layers.git("init", "-q")
    layers.write("lower", b".gitignore", b"node_modules\n")
    layers.write("lower", b"node_modules/a", b"1")
    layers.mkdir("upper", b"node_modules")
    assert layers.left() == {}


def test_tracked_files_are_never_ignored(layers) -> None:
    layers.git("init", "-q")
    layers.write("lower", b".gitignore", b"build/\n*.log\n")
    for path in (b"build/tracked", b"build/untracked", b"kept.log", b"other.log"):
        layers.write("lower", path, b"1")
    layers.git("add", "-f", "build/tracked", "kept.log")
    for path in (b"build/tracked", b"build/untracked", b"kept.log", b"other.log", b"build/new"):
        layers.write("upper", path, b"2")
    assert layers.told() == {b"build/tracked": "modified", b"kept.log": "modified"}
    assert layers.left() == dict.fromkeys((b"build/untracked", b"build/new", b"other.log"), (Left.IGNORED, 1))


def test_deleting_a_directory_spares_the_ignored_files_in_it(layers) -> None:
    layers.git("init", "-q")
    layers.write("lower", b".gitignore", b"*.o\n")
    layers.write("lower", b"src/a.c", b"1")
    layers.write("lower", b"src/a.o", b"1")
    layers.whiteout(b"src")
    assert layers.told(implied=True) == {b"src/a.c": "deleted"}
    assert layers.left() == {b"src/a.o": (Left.IGNORED, 1)}


def test_a_new_directory_in_which_everything_is_ignored_is_ignored_itself(layers) -> None:
    layers.git("init", "-q")
    layers.write("lower", b".gitignore", b"*.pyc\n")
    layers.write("upper", b"pkg/a.py", b"1")
    layers.write("upper", b"pkg/__pycache__/a.pyc", b"1")
    layers.write("upper", b"other/deep/__pycache__/b.pyc", b"1")
    assert layers.told(implied=True) == {b"pkg": "added", b"pkg/a.py": "added"}
    assert layers.left() == {b"pkg/__pycache__": (Left.IGNORED, 1), b"other": (Left.IGNORED, 1)}


def test_only_the_lowers_own_rules_count(layers) -> None:
    layers.git("init", "-q")
    layers.write("upper", b".gitignore", b"*\n")
    layers.write("upper", b"a", b"1")
    assert layers.told() == {b".gitignore": "added", b"a": "added"}


def test_a_new_directory_that_ignores_itself_is_a_tools_own_and_stays(layers) -> None:
    layers.git("init", "-q")
    layers.write("lower", b"theirs/a", b"1")
    for directory, content in {
        b".pytest_cache": b"# Created by pytest automatically.\n*\n",
        b"deep/.venv": b"*",
        b"theirs": b"*\n",
        b"some": b"*\n!kept\n",
        b"logs": b"*.log\n",
        b"long": b"#" * 2000 + b"\n*\n",
    }.items():
        layers.write("upper", directory + b"/.gitignore", content)
        layers.write("upper", directory + b"/kept", b"1")
    own = {b".pytest_cache", b"deep"}
    assert {path.partition(b"/")[0] for path in layers.told(implied=True)} == {b"theirs", b"some", b"logs", b"long"}
    assert layers.left() == dict.fromkeys(own, (Left.IGNORED, 2))
    # As git, which shows none of it either; what it shows more is shown here.
    layers.git("init", "-q", cwd=layers.at("upper", b""))
    shown = layers.git("status", "--porcelain", "-uall", cwd=layers.at("upper", b""))
    assert not any(path in shown for path in (b".pytest_cache", b".venv"))
    included = Included(frozenset({Left.IGNORED}))
    asked = change_set("c", layers.manifest(), layers.lower, layers.store, scratch=b"_notes", included=included)
    assert b".pytest_cache/kept" in {change.path for change in asked.changes}


def test_without_a_repository_a_gitignore_in_the_root_still_counts_and_others_do_not(layers) -> None:
    layers.write("lower", b"d/.gitignore", b"*.log\n")
    layers.write("upper", b"d/a.log", b"1")
    assert layers.told() == {b"d/a.log": "added"}
    layers.write("lower", b".gitignore", b"*.tmp\n")
    layers.write("upper", b"a.tmp", b"1")
    assert layers.told() == {}
    assert set(layers.left()) == {b"a.tmp", b"d/a.log"}


def test_a_repository_inside_goes_by_its_own_rules_and_index(layers) -> None:
    layers.git("init", "-q")
    layers.write("lower", b".gitignore", b"*.log\n")
    layers.mkdir("lower", b"sub")
    sub = layers.at("lower", b"sub")
    layers.git("init", "-q", cwd=sub)
    layers.write("lower", b"sub/.gitignore", b"*.tmp\n")
    layers.write("lower", b"sub/kept.tmp", b"1")
    layers.git("add", "-f", "kept.tmp", cwd=sub)
    for path in (b"sub/a.log", b"sub/a.tmp", b"sub/kept.tmp"):
        layers.write("upper", path, b"2")
    assert layers.told() == {b"sub/a.log": "added", b"sub/kept.tmp": "modified"}
    assert set(layers.left()) == {b"sub/a.tmp"}


def test_a_repository_in_an_ignored_directory_stays_ignored(layers) -> None:
    layers.git("init", "-q")
    layers.write("lower", b".gitignore", b"third/\n")
    layers.mkdir("lower", b"third")
    layers.git("init", "-q", cwd=layers.at("lower", b"third"))
    layers.write("upper", b"third/a", b"1")
    assert layers.left() == {b"third": (Left.IGNORED, 1)}


def test_a_linked_worktree_uses_the_common_exclude_file_and_its_own_index(layers, tmp_path) -> None:
    main = tmp_path / "main"
    subprocess.run(["git", "init", "-q", str(main)], check=True)
    layers.git("commit", "-q", "--allow-empty", "-m", "x", cwd=os.fsencode(main))
    os.rmdir(layers.lower_path)
    layers.git("worktree", "add", "-q", os.fsdecode(layers.lower_path), cwd=os.fsencode(main))
    layers.lower.close()
    layers.lower.__init__(layers.lower_path)
    (main / ".git" / "info" / "exclude").write_text("*.log\n")
    layers.write("lower", b"kept.log", b"1")
    layers.git("add", "-f", "kept.log")
    for path in (b"kept.log", b"a.log"):
        layers.write("upper", path, b"2")
    assert layers.told() == {b"kept.log": "modified"}
    assert layers.left() == {b"a.log": (Left.IGNORED, 1)}


def test_the_persons_own_ignore_file_counts(layers, home) -> None:
    layers.git("init", "-q")
    (home / ".config" / "git").mkdir(parents=True)
    (home / ".config" / "git" / "ignore").write_text("*.swp\n")
    layers.write("upper", b"a.swp", b"1")
    assert set(layers.left()) == {b"a.swp"}
    (home / ".gitconfig").write_text("[core]\n\texcludesFile = ~/mine\n")
    (home / "mine").write_text("*.mine\n")
    layers.write("upper", b"a.mine", b"1")
    assert set(layers.left()) == {b"a.mine"}
    assert _git_says(layers.lower_path, [b"a.swp", b"a.mine"], str(home)) == {b"a.mine"}


def test_an_index_that_cannot_be_read_hides_nothing(layers) -> None:
    layers.git("init", "-q")
    layers.write("lower", b".gitignore", b"*.log\n")
    layers.write("lower", b"a.log", b"1")
    layers.write("lower", b".git/index", b"nonsense")
    layers.write("upper", b"a.log", b"2")
    layers.write("upper", b"new.log", b"2")
    assert layers.told() == {b"a.log": "modified"}
