"""Risky paths: what makes a host run code, or leads out of the workspace, and why. They need an explicit yes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

from workbench.checkpoints.manifest import Entry, Manifest
from workbench.review.changeset import Change, State
from workbench.review.names import folded, is_git
from workbench.vfs import paths
from workbench.vfs.storage import Kind, Lower

_CI = "A continuous integration service runs what this says."
_EDITOR = "An editor runs tasks, tools and extensions that this names."
_AGENT = "A coding agent takes commands, tools and permissions from here."
_HOOK = "Git runs these hooks on the person's machine."
_GIT = "Git runs programs that this names, or fetches from where it says."
_SHELL = "A shell or a program it starts runs this when it starts."
_ENVIRONMENT = "Tools put what this sets into the environment of what they run."
_CARGO = "Cargo runs the programs that this names."
_PYTHON = "Python runs this whenever it starts."
_INTERPRETER = "An interpreter runs this when it's started in this directory."
_DEBUGGER = "A debugger or editor runs this when it's started in this directory."

_NAMES = {
    **dict.fromkeys(
        (
            ".gitlab-ci.yml",
            ".gitlab-ci.yaml",
            ".travis.yml",
            ".drone.yml",
            ".woodpecker.yml",
            ".woodpecker.yaml",
            ".circleci",
            ".woodpecker",
            ".buildkite",
            "azure-pipelines.yml",
            "bitbucket-pipelines.yml",
            "jenkinsfile",
        ),
        _CI,
    ),
    **dict.fromkeys((".vscode", ".idea", ".fleet", ".zed"), _EDITOR),
    **dict.fromkeys((".devcontainer", ".devcontainer.json"), "A container tool runs the commands that this names."),
    **dict.fromkeys(
        (
            ".claude",
            ".codex",
            ".cursor",
            ".cursorrules",
            ".gemini",
            ".qwen",
            ".opencode",
            "opencode.json",
            "opencode.jsonc",
            ".aider.conf.yml",
            ".amazonq",
            ".clinerules",
            ".continue",
            ".kiro",
            ".roo",
            ".windsurf",
            ".mcp.json",
        ),
        _AGENT,
    ),
    **dict.fromkeys(
        (".pre-commit-config.yaml", ".pre-commit-hooks.yaml", ".husky", ".githooks", ".lefthook.yml", "lefthook.yml"),
        _HOOK,
    ),
    **dict.fromkeys((".gitmodules", ".gitattributes", ".gitconfig"), _GIT),
    **dict.fromkeys((".hg", ".sl", ".jj"), "A version control program takes its configuration and hooks from here."),
    **dict.fromkeys((".envrc", ".env", "mise.toml", ".mise.toml"), _ENVIRONMENT),
    ".ssh": "ssh takes keys, hosts and commands from here.",
    **dict.fromkeys((".npmrc", ".yarnrc", ".yarnrc.yml"), "A package manager runs the programs that this names."),
    **dict.fromkeys(
        (
            ".bashrc",
            ".bash_profile",
            ".bash_login",
            ".bash_logout",
            ".bash_aliases",
            ".profile",
            ".zshrc",
            ".zshenv",
            ".zprofile",
            ".zlogin",
            ".zlogout",
            ".kshrc",
            ".mkshrc",
            ".cshrc",
            ".tcshrc",
            ".login",
            ".logout",
            ".inputrc",
            ".xinitrc",
            ".xprofile",
            ".xsession",
            "config.fish",
        ),
        _SHELL,
    ),
    **dict.fromkeys((".gdbinit", ".lldbinit", ".exrc", ".vimrc", ".nvimrc", ".nvim.lua", ".dir-locals.el"), _DEBUGGER),
    **dict.fromkeys(("sitecustomize.py", "usercustomize.py"), _PYTHON),
    **dict.fromkeys((".rprofile", ".renviron", ".irbrc", ".pryrc", ".ghci", ".ocamlinit", ".iex.exs"), _INTERPRETER),
}
_SUFFIXES = {".pth": _PYTHON, ".code-workspace": _EDITOR, ".sublime-project": _EDITOR}
_PAIRS = {
    (".github", "workflows"): _CI,
    (".github", "actions"): _CI,
    (".gitea", "workflows"): _CI,
    (".forgejo", "workflows"): _CI,
    (".cargo", "config.toml"): _CARGO,
    (".cargo", "config"): _CARGO,
    ("mise", "config.toml"): _ENVIRONMENT,
    (".mise", "config.toml"): _ENVIRONMENT,
    (".config", "mise.toml"): _ENVIRONMENT,
    (".config", "git"): _GIT,
    (".config", "autostart"): _SHELL,
    (".config", "systemd"): _SHELL,
    (".config", "fish"): _SHELL,
}
_HOLDERS = {first: why for (first, _), why in _PAIRS.items()}
_REPOSITORY = "Git takes its configuration and hooks from here."


class Contents(Protocol):
    """What keeps the contents of an upper layer: `CheckpointStore` does."""

    def read(self, blob: str, /) -> bytes:
        """The whole content of a blob; raises CheckpointError."""
        ...


def reason(path: bytes) -> str:
    """Why a path is risky by its name or that of a directory above it, a sentence; empty where it isn't.

    Names match as `names.folded` takes them, at any depth.
    """
    previous = ""
    for part in path.split(b"/"):
        name = folded(part)
        why = _reason_of_name(name) or _PAIRS.get((previous, name), "")
        if why:
            return why
        previous = name
    return ""


@lru_cache(maxsize=1 << 14)
def _reason_of_name(name: str) -> str:
    return _NAMES.get(name) or next((why for suffix, why in _SUFFIXES.items() if name.endswith(suffix)), "")


class RiskRules:
    """Judges changes against the merged view of a manifest over a lower."""

    def __init__(self, manifest: Manifest, lower: Lower, store: Contents) -> None:
        self._manifest = manifest
        self._lower = lower
        self._store = store
        self._root = paths.parts(lower.root_path.strip(b"/"))
        self._aliases: dict[bytes, str] | None = None

    def reason(self, change: Change) -> str:
        """Why a change is risky, a sentence; empty where it isn't. Raises OSError, and what the store raises.

        Creation, change and deletion alike; a directory never is, since what is in it is judged by itself.
        """
        for path, old, new in change.steps():
            if _is_leaf(old) or _is_leaf(new):
                why = reason(path) or self._reason_of_alias(path)
                if why:
                    return why
        if change.new is not None and change.new.kind is Kind.SYMLINK and change.new != change.old:
            # What it leads to needs no risky name of its own.
            return _HOLDERS.get(folded(paths.name(change.path)), "") or self._reason_of_link(change.path)
        return ""

    def _reason_of_link(self, path: bytes) -> str:
        for target in self._passed(path):
            if target is None:
                return "A symlink that leads out of the workspace."
            why = reason(target) or (_REPOSITORY if any(is_git(name) for name in target.split(b"/")) else "")
            if why:
                return f"A symlink to '{paths.display(target)}': {why}"
        return ""

    def _passed(self, path: bytes) -> Iterable[bytes | None]:
        """Every place that following the symlink at `path` passes through, None for one outside; a loop ends."""
        waiting = list(reversed(paths.parts(path)))
        here: list[bytes] = []
        links = 0
        while waiting:
            name = waiting.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                if not here:
                    yield None
                    return
                here.pop()
                continue
            here.append(name)
            at = b"/".join(here)
            if links:
                yield at
            target = self._link_target(at)
            if target is None:
                continue
            links += 1
            if links > paths.MAX_LINKS:
                return
            here.pop()
            following = target.split(b"/")
            if target.startswith(b"/"):
                following = [part for part in following if part]
                if not self._root or tuple(following[: len(self._root)]) != self._root:
                    yield None
                    return
                following = following[len(self._root) :]
                here.clear()
            waiting.extend(reversed(following))

    def _link_target(self, path: bytes) -> bytes | None:
        """The target of a symlink of the merged view, None where something else or nothing stands."""
        entry = self._manifest.entries.get(path)
        if entry is not None:
            return self._store.read(entry.blob) if entry.kind is Kind.SYMLINK and entry.blob else None
        if self._is_hidden(path):
            return None
        try:
            return self._lower.readlink(path)
        except OSError:
            return None

    def _is_hidden(self, path: bytes) -> bool:
        """Whether an entry of the upper above a path hides what the lower has there."""
        entries: dict[bytes, Entry] = self._manifest.entries
        while path:
            path = path.rpartition(b"/")[0]
            entry = entries.get(path)
            if entry is not None and (entry.kind is not Kind.DIR or entry.opaque):
                return True
        return False

    def _reason_of_alias(self, path: bytes) -> str:
        """Why a path is risky for being what a risky place of the lower's root leads to by a symlink."""
        if self._aliases is None:
            self._aliases = self._find_aliases()
        if not self._aliases:
            return ""
        parts = path.split(b"/")
        for length in range(len(parts), 0, -1):
            why = self._aliases.get(b"/".join(parts[:length]))
            if why:
                return why
        return ""

    def _find_aliases(self) -> dict[bytes, str]:
        """Where symlinks at and directly in the risky places of the root lead, inside the workspace."""
        found: dict[bytes, str] = {}
        waiting = [(name, kind, 0) for name, kind in self._risky_at_root()]
        while waiting:
            path, kind, depth = waiting.pop()
            why = reason(path) or ("" if depth else _HOLDERS[folded(path)])
            if kind is Kind.SYMLINK and why:
                try:
                    target = self._lower.resolve(path)
                except OSError:
                    continue
                found[target] = f"'{paths.display(path)}' is a symlink to it: {why}"
            elif kind is Kind.DIR and depth < 2:
                waiting.extend((path + b"/" + name, below, depth + 1) for name, below in self._entries(path))
        return found

    def _risky_at_root(self) -> list[tuple[bytes, Kind]]:
        """Its risky names alone: a root may have thousands, and what kinds the others are nobody asks."""
        found = []
        with contextlib.suppress(OSError):
            for name in self._lower.list(b""):
                if folded(name) in _HOLDERS or reason(name):
                    with contextlib.suppress(OSError):
                        found.append((name, self._lower.stat(name).kind))
        return found

    def _entries(self, path: bytes) -> list[tuple[bytes, Kind]]:
        try:
            return self._lower.entries(path)
        except OSError:
            return []


def _is_leaf(state: State | None) -> bool:
    return state is not None and state.kind is not Kind.DIR
