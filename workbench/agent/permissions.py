"""Who decides whether a call may run: a resolver, the tool, a person.

The person's own rules stand in the `[agent]` table of their configuration, never in the workspace's. ::

    [[agent.permissions]]           # the first one that fits a call decides
    permission = "auto"             # auto, ask, deny
    tool = "read_*"                 # a glob over the tool's name
    arguments = { path = "src/*" }  # each a glob over that argument
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Literal

import anyio
from pydantic import BaseModel, ConfigDict

from workbench.errors import ApprovalError
from workbench.protocol.messages import ToolCall
from workbench.protocol.sessions import ApprovalRequest
from workbench.tools.base import Tool, ToolSession

Permission = Literal["auto", "ask", "deny"]
PermissionResolver = Callable[[Tool, ToolCall, ToolSession], Permission | Awaitable[Permission]]
ApprovalHandler = Callable[[ApprovalRequest], Awaitable[bool]]

_REMEMBERED = 1_000


def call_digest(call: ToolCall) -> str:
    """What a call is, whatever the order or the spacing of its arguments; that of unparsable ones is of their text."""
    arguments: object = call.raw_arguments if call.arguments is None else call.arguments
    canonical = json.dumps([call.name, arguments], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


class PermissionRule(BaseModel):
    """One rule; see the module."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    permission: Permission
    tool: str = "*"
    arguments: dict[str, str] = {}

    def fits(self, call: ToolCall) -> bool:
        """Whether the rule is about this call.

        A rule that allows isn't about an argument with `.` or `..` among its parts, which may be a path that leaves what
        the glob means; any other rule is also about the path that such an argument stands for.
        """
        if not fnmatchcase(call.name, self.tool):
            return False
        return all(self._matches(glob, (call.arguments or {}).get(name)) for name, glob in self.arguments.items())

    def _matches(self, glob: str, value: object) -> bool:
        if value is None:
            return False
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        if self.permission == "auto":
            return fnmatchcase(text, glob) and not {".", ".."} & set(text.split("/"))
        return fnmatchcase(text, glob) or fnmatchcase(posixpath.normpath(text), glob)


class PermissionRules:
    """A resolver made of the person's rules and of what they have allowed for the rest of a session.

    A rule that denies holds whatever was allowed for a session.
    """

    def __init__(self, rules: Iterable[PermissionRule] = ()) -> None:
        self._rules = tuple(rules)
        self._allowed: dict[str, list[PermissionRule]] = {}

    def allow_for_session(self, session_id: str, tool: str, arguments: Mapping[str, str] | None = None) -> None:
        """Let calls of this tool, with arguments that the globs fit, run unasked in this session."""
        rule = PermissionRule(permission="auto", tool=tool, arguments=dict(arguments or {}))
        self._allowed.setdefault(session_id, []).append(rule)

    def forget(self, session_id: str) -> None:
        """Take back what was allowed for a session."""
        self._allowed.pop(session_id, None)

    def __call__(self, tool: Tool, call: ToolCall, session: ToolSession) -> Permission:
        """The permission of a call: the first rule's that fits, else the tool's own."""
        found = next((rule.permission for rule in self._rules if rule.fits(call)), None)
        if found != "deny" and any(rule.fits(call) for rule in self._allowed.get(session.id, ())):
            return "auto"
        return found or tool.schema.permission


class _Open:
    """A request that waits."""

    def __init__(self, request: ApprovalRequest) -> None:
        self.request = request
        self.answered = anyio.Event()
        self.approved = False


class ApprovalBroker:
    """Waits for somebody to answer, in any order and for each request once. A new message never approves."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._answers: dict[str, str] = {}
        self._order: deque[str] = deque()

    async def __call__(self, request: ApprovalRequest) -> bool:
        """Wait for the answer; cancelling the wait takes the request back."""
        entry = self._open[request.id] = _Open(request)
        try:
            await entry.answered.wait()
            return entry.approved
        finally:
            if self._open.pop(request.id, None) is not None:
                self._remember(request.id, "nobody")

    def pending(self, session_id: str | None = None) -> tuple[ApprovalRequest, ...]:
        """What waits, oldest first, of one session or of all."""
        return tuple(entry.request for entry in self._open.values() if session_id in (None, entry.request.session_id))

    def answer(self, id: str, approved: bool, *, digest: str, by: str) -> None:
        """Answer a request; the first answer counts.

        Raises ApprovalError: `approval_not_found`, `approval_resolved` (answered, or taken back), `approval_changed` (the
        digest is of another call; the request goes on waiting).
        """
        entry = self._open.get(id)
        if entry is None:
            if id in self._answers:
                raise ApprovalError("This request has been answered or taken back already.", code="approval_resolved")
            raise ApprovalError("There is no request for approval of this id.", code="approval_not_found")
        if digest != entry.request.digest:
            raise ApprovalError(
                "The digest is that of another call.", code="approval_changed", hint="Look at the request again."
            )
        del self._open[id]
        self._remember(id, by)
        entry.approved = approved
        entry.answered.set()

    def answered_by(self, id: str) -> str | None:
        """Who answered a request; None of one that is unknown or waits."""
        return self._answers.get(id)

    def _remember(self, id: str, by: str) -> None:
        self._answers[id] = by
        self._order.append(id)
        if len(self._order) > _REMEMBERED:
            self._answers.pop(self._order.popleft(), None)
