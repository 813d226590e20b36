"""The adapters that come with workbench, one file an agent."""

from __future__ import annotations

from workbench.transcripts.agents.aider import Aider
from workbench.transcripts.agents.amp import Amp
from workbench.transcripts.agents.claude_code import ClaudeCode
from workbench.transcripts.agents.cline import Cline, KiloCode, RooCode
from workbench.transcripts.agents.codex import Codex
from workbench.transcripts.agents.continue_dev import Continue
from workbench.transcripts.agents.copilot_cli import CopilotCli
from workbench.transcripts.agents.crush import Crush
from workbench.transcripts.agents.cursor import Cursor
from workbench.transcripts.agents.droid import Droid
from workbench.transcripts.agents.gemini_cli import GeminiCli
from workbench.transcripts.agents.goose import Goose
from workbench.transcripts.agents.kimi import Kimi
from workbench.transcripts.agents.opencode import OpenCode
from workbench.transcripts.agents.pi import Pi
from workbench.transcripts.agents.qwen_code import QwenCode
from workbench.transcripts.agents.workbench import Workbench
from workbench.transcripts.agents.zed import Zed
from workbench.transcripts.files import FileAdapter

ADAPTERS: tuple[type[FileAdapter], ...] = (
    ClaudeCode,
    Codex,
    GeminiCli,
    QwenCode,
    CopilotCli,
    Pi,
    Kimi,
    Droid,
    Cline,
    RooCode,
    KiloCode,
    Amp,
    Continue,
    Aider,
    OpenCode,
    Cursor,
    Goose,
    Crush,
    Zed,
    Workbench,
)
