"""Prompts, titles, messages, caps, marks and validation."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from referencing.exceptions import Unresolvable

from workbench.agent.capping import capped
from workbench.agent.marks import marked
from workbench.agent.prompt import (
    assistant_message,
    create_message,
    default_system_prompt,
    estimate_tokens,
    title_from_input,
    tool_message,
)
from workbench.agent.validation import format_validation_issues, validate_arguments
from workbench.protocol.messages import CompletionResponse, ImageAttachment, ProviderState
from workbench.testing import Turn


def test_the_default_prompt_says_where_with_what_and_how() -> None:
    """ "The default prompt states the workspace, the available tool names, the rule to prefer small verified changes, and
    that tool output is untrusted data. config.agent.systemPrompt is appended as additional instructions."""
    prompt = default_system_prompt(workspace="/srv/repo", tool_names=["write", "read"], extra="Speak French.")
    assert "/srv/repo" in prompt
    assert "read, write" in prompt
    assert "small" in prompt
    assert "verify" in prompt
    assert "untrusted data" in prompt
    assert prompt.endswith("Speak French.")
    assert "None" not in default_system_prompt(workspace="w", tool_names=[])


def test_messages_have_ids_of_their_own_and_a_time() -> None:
    """ "createMessage(role, content): New message with id and timestamp."""
    image = ImageAttachment(media_type="image/png", data=b"x")
    one, other = create_message("user", "a", images=[image]), create_message("user", "a")
    assert one.id != other.id
    assert one.created_at.tzinfo is not None
    assert (one.role, one.content, one.images) == ("user", "a", (image,))


def test_a_reply_becomes_a_message_with_all_that_is_stored_of_it() -> None:
    """ "assistantMessage(partial): Builds an assistant message from a completion."""
    state = ProviderState(provider="p", model="m", data=b"\xff")
    call = Turn.call("x", {"a": 1})
    response = CompletionResponse(
        content="a", reasoning="r", tool_calls=(call,), finish_reason="stop", provider_state=state
    )
    message = assistant_message(response)
    assert (message.role, message.content, message.tool_calls, message.provider_state) == (
        "assistant",
        "a",
        (call,),
        state,
    )
    assert "reasoning" not in message.model_dump_json()


def test_a_result_becomes_a_message_with_the_id_of_its_call() -> None:
    """ "toolMessage(call, content): Correlates a result with its call id."""
    call = Turn.call("x")
    message = tool_message(call, "out", is_error=True)
    assert (message.role, message.content, message.tool_call_id, message.is_error) == ("tool", "out", call.id, True)


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("abcd", 1), ("abcde", 2), ("x" * 4_000, 1_000)])
def test_about_four_characters_are_a_token(text: str, tokens: int) -> None:
    """ "estimateTokens(text): Rough token estimate (~4 chars/token)."""
    assert estimate_tokens(text) == tokens


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Fix it.", "Fix it."),
        ("\n\n  Fix   it.  \nNow.", "Fix it."),
        ("", "New session"),
        ("word " * 30, "word word word word word word word word word word word word…"),
        ("x" * 100, "x" * 59 + "…"),
    ],
)
def test_a_title_is_the_first_line_cut_between_words(text: str, title: str) -> None:
    """ "titleFromInput(text): Derives a session title from the first message."""
    assert title_from_input(text) == title
    assert len(title) <= 61


@given(st.text(max_size=2_000), st.integers(150, 3_000))
def test_a_capped_result_never_exceeds_its_limit_and_never_splits_a_character(text: str, limit: int) -> None:
    """ "a longer result becomes {"truncated":true,"total_bytes":N,"notice":"...","content":"<prefix>"}".
    UKGovernmentBEIS/inspect_ai 4656."""
    shown = capped(text, limit)
    if not text.strip():
        assert shown == "(no output)"
    elif len(text.encode()) <= limit:
        assert shown == text
    else:
        assert len(shown.encode()) <= max(limit, len(capped("x" * 100_000, 1)))
        value = json.loads(shown)
        assert value["truncated"] is True
        assert value["total_bytes"] == len(text.encode())
        assert text.startswith(value["content"])


def test_as_much_of_a_result_is_shown_as_fits() -> None:
    """The cap cuts no more than it has to."""
    assert len(capped("x" * 100_000, 1_000)) == 1_000
    assert json.loads(capped('"' * 100_000, 1_000))["content"].startswith('"' * 400)


def test_marks_go_on_the_system_prompt_and_the_last_message_with_content() -> None:
    """ "marks the system prompt and its last message (when that has content)"."""
    system, user, empty = create_message("system", "s"), create_message("user", "u"), create_message("assistant", "")
    assert [bool(message.cache_breakpoint) for message in marked([system, user])] == [True, True]
    assert [bool(message.cache_breakpoint) for message in marked([user])] == [True]
    assert [bool(message.cache_breakpoint) for message in marked([system, user, empty])] == [True, False, False]
    assert marked([]) == ()


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "items": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def test_valid_arguments_have_no_issues() -> None:
    """ "validateArguments(schema, args) returns JsonValidationIssue[]"."""
    assert validate_arguments(SCHEMA, {"name": "x", "items": [{"n": 1}]}) == ()


def test_issues_are_rendered_as_path_and_message_a_line_each() -> None:
    """ "formatValidationIssues renders them as path: message."""
    issues = validate_arguments(SCHEMA, {"items": [{"n": 1}, {"n": "x"}], "other": 1})
    assert format_validation_issues(issues).splitlines() == [
        "'name' is a required property",
        "Additional properties are not allowed ('other' was unexpected)",
        "items[1].n: 'x' is not of type 'integer'",
    ]
    assert format_validation_issues(validate_arguments(SCHEMA, [])) == "[] is not of type 'object'"


def test_an_issue_does_not_repeat_a_huge_value() -> None:
    """What the model reads stays readable."""
    (issue,) = validate_arguments({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": "x" * 1_000_000})
    assert issue.path == "a"
    assert len(issue.message) < 400


def test_a_schema_never_causes_a_request() -> None:
    """The runtime performs no I/O of its own: a reference to elsewhere is an error."""
    with pytest.raises(Exception, match=r"example\.invalid") as raised:
        validate_arguments({"$ref": "http://example.invalid/schema"}, {})
    assert isinstance(raised.value, Unresolvable) or isinstance(raised.value.__cause__, Unresolvable)
