"""Keys of providers: where they come from, and that they're never shown."""

from __future__ import annotations

import os
import subprocess

import anyio

from workbench.errors import ModelRequestError

_SHOWN = "[key]"
_SHORTEST = 6


class Key:
    """A provider's key, read when it's needed: from a variable, or as the first line that a command prints.

    `source` says where it comes from, and is fit to be shown. What a command printed is kept until `forget`.
    """

    def __init__(self, *, value: str = "", variable: str = "", command: str = "") -> None:
        self._value = value.strip()
        self._variable = variable
        self._command = command
        self.source = f"${variable}" if variable else "a command" if command else "given"

    def __repr__(self) -> str:
        return f"Key({self.source})"

    async def read(self, provider: str) -> str:
        """The key. Raises ModelRequestError (auth) where the variable is empty, or the command prints no key."""
        if self._value:
            return self._value
        if self._command:
            self._value = await _printed(self._command, provider)
            return self._value
        value = os.environ.get(self._variable, "").strip()
        if not value:
            raise _none(provider, f"There's no key in ${self._variable}.", f"Set it: export {self._variable}=KEY")
        return value

    def forget(self) -> None:
        """What the command printed wasn't right, or isn't any more: ask it again next time."""
        if self._command:
            self._value = ""


async def _printed(command: str, provider: str) -> str:
    try:
        result = await anyio.run_process(["/bin/sh", "-c", command], check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise _none(provider, f"The key command can't be run: {error.strerror}.", "Try it by hand.") from error
    lines = result.stdout.decode(errors="replace").splitlines()
    if result.returncode != 0 or not lines or not lines[0].strip():
        # Neither of its outputs is repeated: either may hold a key.
        raise _none(
            provider,
            f"The key command printed no key, and ended with {result.returncode}.",
            f"Try it by hand: {command}",
        )
    return lines[0].strip()


def _none(provider: str, message: str, hint: str) -> ModelRequestError:
    return ModelRequestError(message, code="auth", provider=provider, hint=hint)


def masked(text: str, *secrets: str) -> str:
    """The text without what is secret."""
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, _SHOWN)
    return text
