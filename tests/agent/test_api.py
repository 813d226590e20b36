"""The public names of agents, models and tools, as they are documented: what is there may grow, and never changes."""

# ruff: noqa: E501

from __future__ import annotations

import ast
import importlib
import inspect
import random
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import workbench
from workbench.agent.options import SessionOptions
from workbench.errors import WorkbenchError
from workbench.protocol.messages import ToolCall, Usage
from workbench.protocol.runs import RunOptions

PUBLIC = {
    "agent.run": """
        Run.id
        Run.message_id
        Run.done
        async Run.result(self)
        Run.cancel(self)
        RunStream.__aiter__(self)
        async drain(events)
    """,
    "agent.session": """
        AgentSession.__init__(self, *, id, history, locker, model=None, models=None, workspace='', system_prompt=None, options=SessionOptions())
        AgentSession.local(cls, *, id, model, history=None, locker=None, workspace='', system_prompt=None, options=SessionOptions())
        AgentSession.id
        AgentSession.model
        AgentSession.workspace
        AgentSession.is_running
        AgentSession.summary(self)
        AgentSession.detail(self)
        AgentSession.touch(self)
        AgentSession.subscribe(self, listener)
        async AgentSession.rename(self, title)
        async AgentSession.set_model(self, model)
        async AgentSession.set_system_prompt(self, prompt)
        async AgentSession.reset(self)
        async AgentSession.rewind(self, message_id)
        AgentSession.cancel(self)
        AgentSession.start(self, input, *, images=(), message_id=None)
        AgentSession.run(self, text, *, images=(), message_id=None)
        AgentSession.run_with_options(self, text, options, *, images=(), message_id=None)
        AgentSession.run_with_messages(self, messages)
    """,
    "agent.manager": """
        SessionManager.__init__(self, *, models, default_workspace, store=None, locker=None, system_prompt=None, default_model=None, options=SessionOptions())
        async SessionManager.initialize(self)
        async SessionManager.close(self)
        SessionManager.subscribe(self, listener)
        SessionManager.publish(self, event)
        SessionManager.add_guard(self, guard)
        SessionManager.check_guards(self, context)
        async SessionManager.create(self, request=None, *, tenant_id=None)
        SessionManager.get(self, id)
        SessionManager.has(self, id)
        SessionManager.list(self)
        SessionManager.send(self, id, content)
        SessionManager.cancel(self, id)
        async SessionManager.delete(self, id)
    """,
    "models.base": """
        async LanguageModel.generate(self, request, on_delta=None)
        async collect(model, prompt, *, system=None, max_tokens=None)
    """,
    "agent.models": """
        ModelRegistry.__init__(self, *, default_model=None)
        ModelRegistry.register(self, model, *, set_default=False)
        ModelRegistry.get(self, id=None)
        ModelRegistry.has(self, id)
        ModelRegistry.set_default(self, id)
        ModelRegistry.default_model
        ModelRegistry.list(self)
        ModelRegistry.size
    """,
    "agent.retry": """
        retry_delay(error, attempt, options, random=random.random)
        async sleep(ms, signal=None)
    """,
    "models.errors": """
        is_model_request_error(error)
        model_http_error(provider, status, headers, body)
        model_network_error(provider, cause)
    """,
    "tools.base": """
        Tool.execute(self, args, context)
        tool(*, name=None, permission='auto', parallel=False, resources=())
    """,
    "tools.registry": """
        ToolRegistry.register(self, tool)
        ToolRegistry.get(self, name)
        ToolRegistry.list(self)
        ToolRegistry.schemas(self)
        ToolRegistry.size
    """,
    "agent.permissions": """
        async ApprovalBroker.__call__(self, request)
        ApprovalBroker.pending(self, session_id=None)
        ApprovalBroker.answer(self, id, approved, *, digest, by)
    """,
    "agent.history": """
        async History.append(self, session_id, *messages)
        async History.read(self, session_id)
    """,
    "agent.locks": """
        Locker.lock(self, session_id)
    """,
    "agent.stores": """
        async SessionStore.list(self)
        async SessionStore.load(self, id)
        async SessionStore.save(self, session)
        async SessionStore.delete(self, id)
    """,
    "agent.prompt": """
        default_system_prompt(*, workspace, tool_names, extra=None)
        create_message(role, content, *, images=())
        assistant_message(response)
        tool_message(call, content, *, is_error=False)
        estimate_tokens(text)
        title_from_input(text)
    """,
    "agent.validation": """
        validate_arguments(schema, args)
        format_validation_issues(issues)
    """,
    "agent.workspace_session": """
        WorkspaceSession.__init__(self, workspace, agent)
        WorkspaceSession.open(cls, workspace, *, model, system_prompt=None, options=SessionOptions())
        async WorkspaceSession.start(self, input, *, images=(), message_id=None)
        async WorkspaceSession.run(self, text, options=RunOptions(), *, images=(), message_id=None)
        async WorkspaceSession.rewind(self, message_id, *, files=True, conversation=True)
        async WorkspaceSession.redo(self)
        async WorkspaceSession.fork(self, message_id, *, name=None)
    """,
}
FIELDS = {
    "protocol.messages": """
        ChatMessage(*, id, role, content='', images=(), tool_calls=(), tool_call_id=None, is_error=False, cache_breakpoint=None, provider_state=None, created_at)
        ImageAttachment(*, media_type, data)
        CacheBreakpoint(*, ttl='5m')
        ProviderState(*, provider, model, data)
        ToolCall(*, id, name, arguments, raw_arguments)
        Usage()
        ToolSchema(*, name, description, parameters, permission='auto', parallel=False, resources=())
        ToolExecutionResult(*, content, data=None, is_error=False, terminate=False)
        ToolResult(*, call_id, name, ok, content='', error=None, model_content, data=None)
        ErrorInfo(*, code, message, hint=None, stack=None)
        ModelInfo(*, id, provider, label=None, context_window=None, supports_tools=None, supports_reasoning=None)
        CompletionRequest(*, model, messages, tools=(), temperature=None, max_tokens=None, thinking=None)
        CompletionResponse(*, content='', reasoning=None, tool_calls=(), images=(), usage=Usage(), finish_reason, provider_state=None)
        TokenDelta(*, kind, text)
    """,
    "protocol.runs": """
        RetryOptions(*, attempts=4, base_delay_ms=500, max_delay_ms=30000)
        Budget(*, run_usd=None, session_usd=None, run_tokens=None, session_tokens=None)
        RunOptions(*, system_suffix=None, thinking=None)
        RunResult(*, run_id, message_id, status, end_reason, finish_reason, text, usage, turns, ok)
    """,
    "protocol.sessions": """
        CreateSessionRequest(*, id=None, title=None, workspace=None, model=None, system_prompt=None)
        SessionSummary(*, id, title, workspace, model, is_running, message_count, usage, tenant_id, created_at, updated_at)
        SessionDetail(*, system_prompt, messages, pending)
        SessionGuardContext(*, action, session_id, tenant_id, sessions, running)
        ApprovalRequest(*, id, session_id, run_id, tool_call, digest, expires_at)
        Rewound(*, removed, messages)
    """,
    "protocol.events": """
        TextEvent(*, text)
        ThinkingEvent(*, text)
        ToolCallEvent(*, tool_call)
        ToolResultEvent(*, tool_result)
        ImageEvent(*, image)
        UsageEvent(*, usage)
        MessageCompleted(*, message)
        Notice(*, code, message, delay_ms=None)
        ToolProgress(*, call_id, message)
        ApprovalRequested(*, request)
        ApprovalResolved(*, request_id, approved, by)
        ErrorEvent(*, error)
        EndEvent(*, end_reason)
        RunStarted(*, message_id)
        RunCompleted(*, result)
        RunCancelled(*, result)
        RunFailed(*, error, end_reason, usage)
        SessionCreated(*, session)
        SessionUpdated(*, session)
        SessionDeleted()
        SessionRewound(*, message_id, removed, messages)
    """,
}

KNOWN = {"SessionOptions": SessionOptions, "RunOptions": RunOptions, "Usage": Usage, "random": random}


def listed(table: dict[str, str]) -> list[Any]:
    """Each line of a table, with its module."""
    return [
        pytest.param(module, line.strip(), id=line.strip().split("(")[0])
        for module, lines in table.items()
        for line in lines.strip().splitlines()
    ]


def found(module: str, name: str) -> Any:
    """What is there under a dotted name."""
    value = importlib.import_module(f"workbench.{module}")
    for part in name.split("."):
        value = inspect.getattr_static(value, part) if inspect.isclass(value) else getattr(value, part)
    return value


def wanted(line: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """A line as a definition."""
    prefix = "async " if line.startswith("async ") else ""
    (node,) = ast.parse(f"{prefix}def f({line.partition('(')[2]}: ...").body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return node


@pytest.mark.parametrize(("module", "line"), listed(PUBLIC))
def test_every_public_name_is_there_with_its_signature_and_its_defaults(module: str, line: str) -> None:
    """The documents' names in snake_case, each a method or a read-only attribute: what is there may grow, and never
    changes."""
    name = line.removeprefix("async ").partition("(")[0]
    value = found(module, name)
    if "(" not in line:
        # Read-only, or made when the object is.
        assert isinstance(value, property)
        assert value.fset is None
        return
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    definition = wanted(line)
    assert inspect.iscoroutinefunction(function) == isinstance(definition, ast.AsyncFunctionDef)
    there = dict(inspect.signature(function).parameters)
    arguments = definition.args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    expected = [
        *((inspect.Parameter.POSITIONAL_OR_KEYWORD, *one) for one in zip(arguments.args, defaults, strict=True)),
        *(
            (inspect.Parameter.KEYWORD_ONLY, *one)
            for one in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ),
    ]
    if arguments.vararg is not None:
        assert there.pop(arguments.vararg.arg).kind is inspect.Parameter.VAR_POSITIONAL
    for kind, argument, default in expected:
        parameter = there.pop(argument.arg)
        assert parameter.kind is kind
        if default is None:
            assert parameter.default is parameter.empty
        else:
            value = eval(ast.unparse(default), dict(KNOWN))
            assert parameter.default == value or (parameter.default is None and value == SessionOptions())
    # What has come since can be left out.
    assert all(one.kind is one.KEYWORD_ONLY and one.default is not one.empty for one in there.values())


@pytest.mark.parametrize(("module", "line"), listed(FIELDS))
def test_every_model_and_event_has_its_fields_and_can_not_be_changed(module: str, line: str) -> None:
    """ "ModelInfo", "CompletionRequest", "CompletionResponse", "ToolExecutionResult", "RunResult" and the table of events,
    field by field."""
    model = found(module, line.partition("(")[0])
    assert issubclass(model, BaseModel)
    assert model.model_config["frozen"]
    definition = wanted(line)
    arguments = zip(definition.args.kwonlyargs, definition.args.kw_defaults, strict=True)
    defaults = {argument.arg: default for argument, default in arguments}
    for name, default in defaults.items():
        field = model.model_fields[name]
        assert field.is_required() == (default is None)
        if default is not None:
            assert field.get_default() == eval(ast.unparse(default), dict(KNOWN))


def test_a_model_can_not_be_changed() -> None:
    call = ToolCall(id="1", name="n", arguments={}, raw_arguments="{}")
    with pytest.raises(ValidationError):
        call.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "name",
    [
        "Workspace",
        "WorkspaceSession",
        "AgentSession",
        "SessionManager",
        "SessionOptions",
        "RunOptions",
        "RunResult",
        "drain",
        "ModelRegistry",
        "ToolRegistry",
        "tool",
        "Thinking",
        "WorkbenchError",
    ],
)
def test_the_package_offers_what_is_used_most(name: str) -> None:
    assert getattr(workbench, name) is not None
    assert name in workbench.__all__


CODES = {
    "OptionsError": "invalid_options",
    "SessionNotFoundError": "session_not_found",
    "SessionBusyError": "session_busy",
    "SessionClosedError": "session_closed",
    "MessageExistsError": "message_exists",
    "HistoryNotRewindableError": "history_not_rewindable",
    "ModelNotFoundError": "model_not_found",
    "DuplicateToolError": "duplicate_tool",
    "HistoryError": "history_failed",
    "LockError": "lock_failed",
    "StoreError": "store_failed",
    "CapabilityUnsupportedError": "capability_unsupported",
    "OperationCancelledError": "cancelled",
}


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_every_error_is_of_one_tree_and_has_its_code(name: str, code: str) -> None:
    error = found("errors", name)
    assert issubclass(error, WorkbenchError)
    assert error("What happened.").code == code
