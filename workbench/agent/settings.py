"""What a person's configuration says of agents: the `[agent]` table."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from workbench import config
from workbench.agent.permissions import PermissionRule


class AgentSettings(BaseModel):
    """The table: the model to ask where none is named, what is added to the system prompt, rules about tool calls."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = ""
    system_prompt: str | None = None
    permissions: tuple[PermissionRule, ...] = ()


def load() -> AgentSettings:
    """The person's settings. Raises OptionsError where they can't be read."""
    return config.read(AgentSettings, "agent", hint="Correct it: no run is started until then.")
