"""The person's policy: what may land by itself, what waits for a review, and what never lands.

It's the `[commit]` table of `config.toml` in `$WORKBENCH_CONFIG`, else `$XDG_CONFIG_HOME/workbench`, else
`~/.config/workbench`: the person's own, never the workspace's. ::

    [commit]
    policy = "success"              # review (the default), success, never

    [[commit.rules]]                # the first one that fits a change decides
    action = "deny"                 # allow, ask, deny
    glob = ["migrations/", "*.sql"] # as in a .gitignore, upper and lower case alike
    kind = ["deleted"]              # any of added, modified, deleted, mode, kind-changed, renamed
    larger_than = 1000000           # bytes of the new content
    more_than = 50                  # changes in the whole set

    [commit.sessions."nightly-*"]   # for sessions of such a name; * and ? stand for letters
    policy = "never"
    rules = [{action = "allow", glob = ["docs/"]}]

All conditions of a rule must hold. A session's own rules come before those for all; of several tables whose name fits, the
one named exactly counts, else the first. What no rule fits is allowed; what is risky is asked for at least, whatever a
rule says. `success` is for agents' runs that don't say `--commit`: a command lands nothing by itself unless told to.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from pydantic import BaseModel, ConfigDict, Field

from workbench import config
from workbench.errors import CommitError
from workbench.review.changeset import Change, ChangeKind, ChangeSet
from workbench.review.names import folded
from workbench.vfs import paths
from workbench.vfs.ignore_patterns import PatternList


class Mode(StrEnum):
    """What becomes of a run's changes: they wait for a `REVIEW`, land by themselves at `SUCCESS`, or `NEVER` land in the
    working tree, only as a patch or a branch."""

    REVIEW = "review"
    SUCCESS = "success"
    NEVER = "never"


class Action(StrEnum):
    """What a rule says of a change."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Rule(BaseModel):
    """One rule; see the module."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Action
    glob: tuple[str, ...] = ()
    kind: tuple[ChangeKind, ...] = ()
    larger_than: int | None = Field(default=None, ge=0)
    more_than: int | None = Field(default=None, ge=0)

    def fits(self, change: Change, number: int) -> bool:
        """Whether the rule is about a change of a set with that `number` of changes."""
        return (
            (not self.kind or change.kind in self.kind)
            and (self.larger_than is None or (change.new is not None and change.new.size > self.larger_than))
            and (self.more_than is None or number > self.more_than)
            and (not self.glob or any(self._names(path) for path, _, _ in change.steps()))
        )

    def _names(self, path: bytes) -> bool:
        parts = [folded(part).encode("utf-8", "surrogateescape") for part in paths.parts(path)]
        # What is below a directory that a pattern names is named with it.
        return any(
            self._patterns.match(b"/".join(parts[:depth]), parts[depth - 1], is_dir=depth < len(parts))
            for depth in range(1, len(parts) + 1)
        )

    @cached_property
    def _patterns(self) -> PatternList:
        return PatternList("\n".join(self.glob).lower().encode("utf-8", "surrogateescape"))


class SessionPolicy(BaseModel):
    """What a session has of its own: a policy where it's not the one for all, rules before those."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Mode | None = None
    rules: tuple[Rule, ...] = ()


class Policy(BaseModel):
    """The `[commit]` table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Mode = Mode.REVIEW
    rules: tuple[Rule, ...] = ()
    sessions: dict[str, SessionPolicy] = {}

    def of(self, session: str) -> Policy:
        """The policy of one session."""
        fitting = (own for pattern, own in self.sessions.items() if fnmatch.fnmatchcase(session, pattern))
        own = self.sessions.get(session) or next(fitting, SessionPolicy())
        return Policy(policy=own.policy or self.policy, rules=own.rules + self.rules)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a policy says of a change set: `denied` never lands, and with `asked` the whole set waits for a yes."""

    denied: tuple[bytes, ...]
    asked: tuple[bytes, ...]


def load(session: str) -> Policy:
    """The person's policy for a session, the default one where there is no file.

    Raises OptionsError where it can't be read: then nothing is allowed.
    """
    return config.read(Policy, "commit", hint="Correct it: nothing lands until then.").of(session)


def judge(changes: ChangeSet, policy: Policy) -> Ruling:
    """What the rules say of a change set."""
    number = len(changes.shown)
    denied, asked = [], []
    for change in changes.changes:
        if change.implied:
            continue
        fitting = (rule.action for rule in policy.rules if rule.fits(change, number))
        action = next(fitting, Action.ALLOW)
        if action is Action.DENY:
            denied.append(change.path)
        elif action is Action.ASK or change.risk:
            asked.append(change.path)
    return Ruling(tuple(denied), tuple(asked))


def require_allowed(changes: ChangeSet, policy: Policy, *, in_working_tree: bool) -> None:
    """Raise CommitError (policy_denied) for what may not land even after a review."""
    if in_working_tree and policy.policy is Mode.NEVER:
        raise CommitError(
            "Your policy is that nothing lands in the working tree.",
            code="policy_denied",
            hint="Take a patch (workbench diff) or a branch (workbench commit --git BRANCH), or change your config.toml.",
        )
    if denied := judge(changes, policy).denied:
        raise CommitError(
            "A rule of yours denies these; nothing was applied.",
            code="policy_denied",
            paths=denied,
            hint="Leave them out (workbench review, commit --accepted), or change the rules in your config.toml.",
        )
