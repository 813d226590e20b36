"""What may land by itself, what waits, and what never lands is the person's to say, in the person's own file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.review.landing import Landing
from workbench.errors import CommitError, OptionsError
from workbench.review import policy
from workbench.review.policy import Mode, Policy, Ruling, judge, require_allowed


@pytest.fixture
def landing(tmp_path: Path) -> Iterator[Landing]:
    made = Landing(tmp_path)
    yield made
    made.close()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKBENCH_CONFIG", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "config.toml"


def ruled(landing: Landing, config: Path, rules: str) -> Ruling:
    config.write_text(rules)
    return judge(landing.review()[1], policy.load("default"))


def test_without_a_file_everything_waits_for_a_review_and_nothing_is_denied(landing: Landing, config: Path) -> None:
    landing.write("upper", b"a", b"1")
    assert policy.load("default") == Policy(policy=Mode.REVIEW)
    assert judge(landing.review()[1], policy.load("default")) == Ruling((), ())


def test_the_first_rule_that_fits_decides_by_glob_kind_size_and_count(landing: Landing, config: Path) -> None:
    landing.write("lower", b"doc/gone", b"no rename")
    landing.whiteout(b"doc/gone")
    landing.write("upper", b"db/Migrations/0001.sql", b"1")
    landing.write("upper", b"db/other.sql", b"1")
    landing.write("upper", b"big", b"1" * 2000)
    landing.write("upper", b"small", b"1")
    rules = """
        [[commit.rules]]
        action = "deny"
        glob = ["migrations/"]
        [[commit.rules]]
        action = "allow"
        glob = ["*.SQL"]
        [[commit.rules]]
        action = "ask"
        kind = ["deleted"]
        [[commit.rules]]
        action = "ask"
        larger_than = 1000
    """
    assert ruled(landing, config, rules) == Ruling((b"db/Migrations/0001.sql",), (b"big", b"doc/gone"))
    many = '[[commit.rules]]\naction = "ask"\nmore_than = {}\n'
    assert len(ruled(landing, config, many.format(4)).asked) == 5
    assert ruled(landing, config, many.format(5)).asked == ()
    both = '[[commit.rules]]\naction = "deny"\nkind = ["deleted"]\nglob = ["db/**"]\n'
    assert ruled(landing, config, both).denied == ()


def test_either_end_of_a_rename_fits_a_rule(landing: Landing, config: Path) -> None:
    landing.write("lower", b"kept/a", b"content")
    landing.whiteout(b"kept/a")
    landing.write("upper", b"b", b"content")
    assert ruled(landing, config, '[[commit.rules]]\naction = "deny"\nglob = ["kept/"]\n').denied == (b"b",)


def test_no_rule_allows_what_is_risky(landing: Landing, config: Path) -> None:
    landing.write("upper", b".envrc", b"1")
    assert ruled(landing, config, '[[commit.rules]]\naction = "allow"\n') == Ruling((), (b".envrc",))


def test_what_is_denied_and_what_never_lands_is_refused_even_after_a_review(landing: Landing, config: Path) -> None:
    landing.write("upper", b"a", b"1")
    _, changes = landing.review()
    config.write_text('[[commit.rules]]\naction = "deny"\nglob = ["a"]\n')
    for in_working_tree in (True, False):
        with pytest.raises(CommitError) as caught:
            require_allowed(changes, policy.load("default"), in_working_tree=in_working_tree)
        assert (caught.value.code, caught.value.paths) == ("policy_denied", (b"a",))
    config.write_text('[commit]\npolicy = "never"\n')
    with pytest.raises(CommitError):
        require_allowed(changes, policy.load("default"), in_working_tree=True)
    require_allowed(changes, policy.load("default"), in_working_tree=False)


def test_a_sessions_own_policy_and_rules_come_before_those_for_all(landing: Landing, config: Path) -> None:
    for name in (b"docs/a", b"db/b.sql"):
        landing.write("upper", name, b"new")
    _, changes = landing.review()
    config.write_text(
        """
        [commit]
        policy = "success"
        rules = [{action = "ask", glob = ["*.sql"]}]
        [commit.sessions."night*"]
        rules = [{action = "deny", glob = ["docs/"]}]
        [commit.sessions.nightly]
        policy = "never"
        rules = [{action = "allow", glob = ["*.sql"]}, {action = "ask", glob = ["docs/"]}]
        """
    )
    found = {name: policy.load(name) for name in ("default", "nights", "nightly")}
    assert {name: one.policy for name, one in found.items()} == {
        "default": Mode.SUCCESS,
        "nights": Mode.SUCCESS,
        "nightly": Mode.NEVER,
    }
    assert {name: judge(changes, one) for name, one in found.items()} == {
        "default": Ruling((), (b"db/b.sql",)),
        "nights": Ruling((b"docs/a",), (b"db/b.sql",)),
        "nightly": Ruling((), (b"docs/a",)),
    }


@pytest.mark.parametrize(
    "content",
    [
        "[commit",
        '[commit.sessions.nightly]\npolicy = "sometimes"\n',
        '[commit]\npolicy = "sometimes"\n',
        '[[commit.rules]]\naction = "allow"\nglobs = ["a"]\n',
        '[[commit.rules]]\nglob = ["a"]\n',
        '[[commit.rules]]\naction = "deny"\nkind = ["removed"]\n',
    ],
)
def test_a_file_that_cant_be_read_allows_nothing(config: Path, content: str) -> None:
    config.write_text(content)
    with pytest.raises(OptionsError) as caught:
        policy.load("default")
    assert str(config) in caught.value.message


def test_a_commit_goes_by_the_policy_of_its_session(state: Path, config: Path, tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    config.write_text('[commit.sessions.nightly]\npolicy = "never"\n')
    for session in ("nightly", "default"):
        bench = Bench(root, session)
        bench.do(lambda workspace: workspace.files.write(os.fsencode(workspace.session), b"new"))
        with pytest.raises(CommitError) if session == "nightly" else contextlib.nullcontext():
            bench.commit()
    assert os.listdir(root) == ["default"]
