"""The line that somebody types in a chat: edited, of several lines, completed, and remembered."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from workbench.cli import output


class InputLine:
    """Reads messages and commands from the terminal; what is typed is kept in a file that only its owner reads."""

    def __init__(self, history_path: str, commands: Mapping[str, str]) -> None:
        """`commands` are those to complete, each with what it does. Raises OSError."""
        os.close(os.open(history_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._session: PromptSession[str] = PromptSession(
            [("bold", "> ")],
            multiline=True,
            prompt_continuation="… ",
            history=FileHistory(history_path),
            completer=_Commands(commands),
            complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
            reserve_space_for_menu=6,
            key_bindings=_keys(),
        )

    async def read(self) -> str | None:
        """What was typed, empty where ^C took it back; None at the end of the input."""
        try:
            return await self._session.prompt_async(handle_sigint=False)
        except EOFError:
            return None
        except KeyboardInterrupt:
            if not self._session.default_buffer.text:
                output.say("^D ends the chat")
            return ""


def _keys() -> KeyBindings:
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=typing)
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\") and not buffer.document.text_after_cursor.strip():
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    def _alt_enter(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class _Commands(Completer):
    """The names of commands, where a line begins with a slash."""

    def __init__(self, commands: Mapping[str, str]) -> None:
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        typed = document.text_before_cursor
        if not typed.startswith("/") or typed != document.text:
            return
        for name, what in self._commands.items():
            if name.startswith(typed):
                yield Completion(name, start_position=-len(typed), display_meta=what)
