"""Coding agents that are logged in on this machine: what of a login a sandbox can use, which never has it.

A login is a token that requests carry for some hours, and another one by which the agent gets the next. Only the former is
ever read from here on: the broker puts it into requests, as it does with a key. Where an agent's requests can't be sent
that way, its login stays out of use.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

_FILE_LIMIT = 1 << 20
_LEAST_SECONDS = 300
"""A token that is good for less isn't worth a start."""


@dataclass(frozen=True, slots=True)
class Login:
    """What there is of an agent's login: `token` stands in for the variable of one of its keys, until a time in seconds.

    `until` is 0 where it doesn't run out. Where it can't be used `token` is empty, and `why` a sentence with the next step.
    """

    variable: str = ""
    token: str = ""
    until: float = 0
    why: str = ""


def find(agent: str, environment: Mapping[str, str], now: float) -> Login | None:
    """The login of an agent, by the name of its command; None where it has none here."""
    if agent not in _FILES:
        return None
    variable, directory, name = _FILES[agent]
    base = environment.get(variable) or os.path.join(environment.get("HOME") or "/", directory)
    content = _read(os.path.join(base, name))
    if agent == "claude":
        return _claude(_part(content, "claudeAiOauth"), now)
    if agent == "codex":
        return _codex(content)
    return Login(why=_GEMINI) if content.get("refresh_token") else None


# By agent: the variable that names its directory, that by itself, and the file.
_FILES = {
    "claude": ("CLAUDE_CONFIG_DIR", ".claude", ".credentials.json"),
    "codex": ("CODEX_HOME", ".codex", "auth.json"),
    "gemini": ("", ".gemini", "oauth_creds.json"),
}
_EXPIRED = (
    "Claude Code's login on this machine has to be renewed, which only Claude Code itself can: run `claude` here once, or "
    "`claude setup-token`, and set CLAUDE_CODE_OAUTH_TOKEN to what that prints."
)
_CODEX = (
    "Codex is logged in here with ChatGPT; that login can't be lent to a sandbox without the token that renews it, so it "
    "stays here: set OPENAI_API_KEY, or log in inside, with `codex login --device-auth`."
)
_GEMINI = (
    "Gemini CLI is logged in here with Google; that login can't be lent to a sandbox without the token that renews it, so it "
    "stays here: set GEMINI_API_KEY, or log in inside."
)


def _claude(login: dict[str, object], now: float) -> Login | None:
    token, expires_ms = login.get("accessToken"), login.get("expiresAt")
    if not isinstance(token, str) or not token:
        return None
    until = expires_ms / 1000 if isinstance(expires_ms, int | float) else 0
    if until and until < now + _LEAST_SECONDS:
        return Login(why=_EXPIRED)
    return Login("CLAUDE_CODE_OAUTH_TOKEN", token, until)


def _codex(content: dict[str, object]) -> Login | None:
    key = content.get("OPENAI_API_KEY")
    if isinstance(key, str) and key:
        return Login("OPENAI_API_KEY", key)
    return Login(why=_CODEX) if _part(content, "tokens") else None


def _part(content: dict[str, object], name: str) -> dict[str, object]:
    found = content.get(name)
    return found if isinstance(found, dict) else {}


def _read(path: str) -> dict[str, object]:
    """What a file of JSON holds; nothing where it can't be read, or holds something else."""
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(_FILE_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
