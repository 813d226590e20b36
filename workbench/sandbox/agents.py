"""The coding agents whose own command lines `workbench wrap` runs: what each is, needs and talks to.

What an agent is told on the way in is a shell script that runs inside: it has the key's placeholder and the URL of the
broker, `$URL`, in the environment, and ends by becoming the agent.
"""

from __future__ import annotations

from dataclasses import dataclass

PLACEHOLDER = "brokered-by-workbench"
"""What an agent has in place of a key: the broker puts the key itself into its requests."""


@dataclass(frozen=True, slots=True)
class Key:
    """A variable that may hold a key, and how requests carry it: to the host of `url`, unless `url_variable` names another.

    `header` has `{}` in the key's place.
    """

    variable: str
    header: str
    url: str
    url_variable: str


@dataclass(frozen=True, slots=True)
class Agent:
    """A command line of npm's `package`.

    `keys`: the first that is set is used. `login_hosts` are what it needs where none is: to log in itself. `passed_on` are
    variables of the person's that it gets, `environment` those it always has. `script` starts it, with its arguments.
    """

    title: str
    package: str
    keys: tuple[Key, ...]
    login_hosts: tuple[str, ...]
    passed_on: tuple[str, ...]
    environment: dict[str, str]
    script: str


_ANTHROPIC, _ANTHROPIC_URL = "https://api.anthropic.com", "ANTHROPIC_BASE_URL"
_OPENAI, _OPENAI_URL = "https://api.openai.com/v1", "OPENAI_BASE_URL"
_BEARER = "Authorization: Bearer {}"
_ANTHROPIC_KEY = Key("ANTHROPIC_API_KEY", "x-api-key: {}", _ANTHROPIC, _ANTHROPIC_URL)
_OPENAI_KEY = Key("OPENAI_API_KEY", _BEARER, _OPENAI, _OPENAI_URL)

AGENTS = {
    "claude": Agent(
        title="Claude Code",
        package="@anthropic-ai/claude-code",
        keys=(
            _ANTHROPIC_KEY,
            Key("CLAUDE_CODE_OAUTH_TOKEN", _BEARER, _ANTHROPIC, _ANTHROPIC_URL),
            Key("ANTHROPIC_AUTH_TOKEN", _BEARER, _ANTHROPIC, _ANTHROPIC_URL),
        ),
        login_hosts=("api.anthropic.com", "console.anthropic.com", "platform.claude.com", "claude.ai"),
        passed_on=("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL"),
        environment={
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "IS_SANDBOX": "1",
        },
        # Asked about once otherwise: whether a key that the environment has is to be used.
        script="""
        if [ -n "$URL" ]; then export ANTHROPIC_BASE_URL="$URL"; fi
        if [ -n "$ANTHROPIC_API_KEY" ] && [ ! -e ~/.claude.json ]; then
            end=$(printf %s "$ANTHROPIC_API_KEY" | tail -c 20)
            printf '{"hasCompletedOnboarding": true, "customApiKeyResponses": {"approved": ["%s"]}}' "$end" > ~/.claude.json
        fi
        exec claude "$@"
        """,
    ),
    "codex": Agent(
        title="Codex",
        package="@openai/codex",
        keys=(_OPENAI_KEY,),
        login_hosts=("auth.openai.com", "chatgpt.com", "api.openai.com"),
        passed_on=(),
        environment={},
        script="""
        if [ -n "$URL" ]; then
            set -- -c model_provider=workbench -c "model_providers.workbench={name=\\"workbench\\", base_url=\\"$URL\\", \\
wire_api=\\"responses\\", env_key=\\"OPENAI_API_KEY\\"}" "$@"
        fi
        exec codex "$@"
        """,
    ),
    "gemini": Agent(
        title="Gemini CLI",
        package="@google/gemini-cli",
        keys=(
            Key(
                "GEMINI_API_KEY",
                "x-goog-api-key: {}",
                "https://generativelanguage.googleapis.com",
                "GOOGLE_GEMINI_BASE_URL",
            ),
        ),
        login_hosts=(
            "accounts.google.com",
            "oauth2.googleapis.com",
            "cloudcode-pa.googleapis.com",
            "www.googleapis.com",
        ),
        passed_on=("GEMINI_MODEL",),
        environment={"GEMINI_CLI_TRUST_WORKSPACE": "true"},
        script="""
        if [ -n "$URL" ]; then
            export GOOGLE_GEMINI_BASE_URL="$URL"
            mkdir -p ~/.gemini
            if [ ! -e ~/.gemini/settings.json ]; then
                echo '{"security": {"auth": {"selectedType": "gemini-api-key"}}}' > ~/.gemini/settings.json
            fi
        fi
        exec gemini "$@"
        """,
    ),
    "opencode": Agent(
        title="opencode",
        package="opencode-ai",
        keys=(_ANTHROPIC_KEY, _OPENAI_KEY),
        login_hosts=("models.dev", "opencode.ai"),
        passed_on=(),
        environment={"OPENCODE_DISABLE_AUTOUPDATE": "1"},
        script="""
        if [ -n "$URL" ]; then
            provider=openai
            if [ -n "$ANTHROPIC_API_KEY" ]; then provider=anthropic URL="$URL/v1"; fi
            export OPENCODE_CONFIG_CONTENT="{\\"provider\\": {\\"$provider\\": {\\"options\\": {\\"baseURL\\": \\"$URL\\"}}}}"
        fi
        exec opencode "$@"
        """,
    ),
    "qwen": Agent(
        title="Qwen Code",
        package="@qwen-code/qwen-code",
        keys=(_OPENAI_KEY,),
        login_hosts=("chat.qwen.ai", "portal.qwen.ai"),
        passed_on=("OPENAI_MODEL",),
        environment={},
        script="""
        if [ -n "$URL" ]; then
            export OPENAI_BASE_URL="$URL"
            set -- --auth-type openai "$@"
        fi
        exec qwen "$@"
        """,
    ),
}
