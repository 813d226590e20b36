"""One agent's loop over a model that answers from a script, in a process of its own: prints what it took, as JSON.

Run by path: `python tests/benchmarks/agent_subject.py NAME time STEPS SESSIONS`, with whatever it needs on PYTHONPATH. STEPS
are the lengths of the runs to time, separated by commas: each step is a call of a tool that returns at once. Prints, by the
length, the milliseconds a step that the processor worked; and as `memory` the kilobytes that each of so many idle SESSIONS
takes, each of which has been asked something once. `NAME peak STEPS` is one run of that length, and prints by it the kilobytes
a step of what Python had at the most, over what it had before.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
import tracemalloc
from typing import Any


class Subject:
    """An agent: `run` takes it through so many calls, `converse` has a conversation of one answer and keeps it."""

    async def run(self, steps: int) -> None:
        raise NotImplementedError

    async def converse(self, number: int) -> object:
        raise NotImplementedError


class Workbench(Subject):
    def __init__(self) -> None:
        from workbench.agent.manager import SessionManager
        from workbench.agent.models import ModelRegistry
        from workbench.agent.options import SessionOptions
        from workbench.agent.session import AgentSession
        from workbench.protocol.messages import CompletionResponse, ModelInfo, ToolCall
        from workbench.testing.scripted_model import ScriptedModel, Turn
        from workbench.tools.base import tool
        from workbench.tools.registry import ToolRegistry

        subject = self
        self.steps = 0
        self.asked = 0

        class Scripted:
            info = ModelInfo(id="m", provider="p")

            async def generate(self, request: Any, on_delta: Any = None) -> Any:
                subject.asked += 1
                if subject.asked > subject.steps:
                    return CompletionResponse(content="done", finish_reason="stop")
                arguments = {"n": subject.asked}
                id = f"call_{subject.asked}"
                call = ToolCall(id=id, name="step", arguments=arguments, raw_arguments=json.dumps(arguments))
                return CompletionResponse(tool_calls=(call,), finish_reason="tool_calls")

        @tool()
        async def step(n: int) -> str:
            """Take a step."""
            return "ok"

        self.tools = ToolRegistry()
        self.tools.register(step)
        self.session, self.options, self.model = AgentSession, SessionOptions, Scripted()
        models = ModelRegistry()
        models.register(ScriptedModel(*(Turn(text="done") for _ in range(100_000))))
        self.manager = SessionManager(models=models, default_workspace="/w", options=SessionOptions(tools=self.tools))

    async def run(self, steps: int) -> None:
        self.steps, self.asked = steps, 0
        options = self.options(tools=self.tools, max_turns=steps + 1)
        async with self.session.local(id="s", model=self.model, options=options) as session:
            result = await session.start("go").result()
        assert (result.status, result.turns) == ("completed", steps + 1)

    async def converse(self, number: int) -> object:
        session = await self.manager.create()
        await session.start(f"question {number}").result()
        return session


class PydanticAI(Subject):
    def __init__(self) -> None:
        from pydantic_ai import Agent, UsageLimits
        from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
        from pydantic_ai.models.function import FunctionModel

        self.steps = 0
        self.asked = 0

        def answer(messages: Any, info: Any) -> Any:
            self.asked += 1
            if self.asked > self.steps:
                return ModelResponse(parts=[TextPart("done")])
            return ModelResponse(parts=[ToolCallPart("step", {"n": self.asked}, tool_call_id=f"call_{self.asked}")])

        self.agent = Agent(FunctionModel(answer))
        self.limits = UsageLimits(request_limit=None)

        @self.agent.tool_plain
        async def step(n: int) -> str:
            """Take a step."""
            return "ok"

    async def run(self, steps: int) -> None:
        self.steps, self.asked = steps, 0
        result = await self.agent.run("go", usage_limits=self.limits)
        assert result.output == "done"
        assert self.asked == steps + 1

    async def converse(self, number: int) -> object:
        self.steps, self.asked = 0, 0
        return (await self.agent.run(f"question {number}")).all_messages()


class OpenAIAgents(Subject):
    def __init__(self) -> None:
        from agents import Agent, ModelResponse, Runner, SQLiteSession, Usage, function_tool, set_tracing_disabled
        from agents.models.interface import Model
        from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

        set_tracing_disabled(True)
        subject = self
        self.steps = 0
        self.asked = 0

        class Scripted(Model):
            async def get_response(self, *arguments: Any, **options: Any) -> Any:
                subject.asked += 1
                if subject.asked > subject.steps:
                    text = ResponseOutputText(annotations=[], text="done", type="output_text")
                    output: Any = ResponseOutputMessage(
                        id="m", content=[text], role="assistant", status="completed", type="message"
                    )
                else:
                    output = ResponseFunctionToolCall(
                        arguments=json.dumps({"n": subject.asked}),
                        call_id=f"call_{subject.asked}",
                        name="step",
                        type="function_call",
                    )
                return ModelResponse(output=[output], usage=Usage(), response_id=None)

            def stream_response(self, *arguments: Any, **options: Any) -> Any:
                raise NotImplementedError

        @function_tool
        async def step(n: int) -> str:
            """Take a step."""
            return "ok"

        self.agent = Agent(name="a", model=Scripted(), tools=[step])
        self.runner, self.kept = Runner, SQLiteSession

    async def run(self, steps: int) -> None:
        self.steps, self.asked = steps, 0
        result = await self.runner.run(self.agent, "go", max_turns=steps + 1)
        assert result.final_output == "done"
        assert self.asked == steps + 1

    async def converse(self, number: int) -> object:
        self.steps, self.asked = 0, 0
        session = self.kept(str(number))
        await self.runner.run(self.agent, f"question {number}", session=session)
        return session


class MiniSweAgent(Subject):
    def __init__(self) -> None:
        from minisweagent.agents.default import DefaultAgent
        from minisweagent.models.test_models import DeterministicModel, make_output

        class Environment:
            """Where a step returns at once."""

            config = None

            def execute(self, action: Any, cwd: str = "", **options: Any) -> dict[str, Any]:
                if action["command"] == "finish":
                    from minisweagent.exceptions import Submitted

                    extra = {"exit_status": "Submitted", "submission": "done"}
                    raise Submitted({"role": "exit", "content": "done", "extra": extra})
                return {"output": "ok", "returncode": 0, "exception_info": ""}

            def get_template_vars(self, **options: Any) -> dict[str, Any]:
                return {}

            def serialize(self) -> dict[str, Any]:
                return {}

        def make(steps: int) -> Any:
            calls = [make_output("", [{"command": f"step {n}"}], 0.0) for n in range(steps)]
            outputs = [*calls, make_output("", [{"command": "finish"}], 0.0)]
            return DefaultAgent(
                DeterministicModel(outputs=outputs, cost_per_call=0.0),
                Environment(),  # type: ignore[arg-type]
                system_template="Go.",
                instance_template="{{task}}",
                cost_limit=0,
            )

        self.make = make

    async def run(self, steps: int) -> None:
        agent = self.make(steps)
        assert agent.run("go")["submission"] == "done"
        assert agent.n_calls == steps + 1

    async def converse(self, number: int) -> object:
        agent = self.make(0)
        agent.run(f"question {number}")
        return agent


SUBJECTS: dict[str, type[Subject]] = {
    "workbench": Workbench,
    "pydantic-ai-slim": PydanticAI,
    "openai-agents": OpenAIAgents,
    "mini-swe-agent": MiniSweAgent,
}


def _resident_kilobytes() -> int:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


async def measure(subject: Subject, steps: list[int], sessions: int) -> dict[str, float]:
    found = {}
    await subject.run(10)
    for count in steps:
        start = time.process_time()
        await subject.run(count)
        found[str(count)] = (time.process_time() - start) * 1000 / count
    kept = [await subject.converse(number) for number in range(50)]
    before = _resident_kilobytes()
    kept += [await subject.converse(number) for number in range(sessions)]
    found["memory"] = (_resident_kilobytes() - before) / sessions
    assert len(kept) == sessions + 50
    return found


async def peak(subject: Subject, steps: int) -> dict[str, float]:
    await subject.run(10)
    gc.collect()
    tracemalloc.start()
    await subject.run(steps)
    return {str(steps): tracemalloc.get_traced_memory()[1] / 1024 / steps}


if __name__ == "__main__":
    name, what, lengths, *rest = sys.argv[1:]
    if what == "peak":
        told = peak(SUBJECTS[name](), int(lengths))
    else:
        told = measure(SUBJECTS[name](), [int(each) for each in lengths.split(",")], int(rest[0]))
    print(json.dumps(asyncio.run(told)))
