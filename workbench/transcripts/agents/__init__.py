"""The adapters that come with workbench, one file an agent."""

from __future__ import annotations

from workbench.transcripts.agents.claude_code import ClaudeCode
from workbench.transcripts.agents.codex import Codex
from workbench.transcripts.files import FileAdapter

ADAPTERS: tuple[type[FileAdapter], ...] = (ClaudeCode, Codex)
