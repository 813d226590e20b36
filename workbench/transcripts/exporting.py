"""A transcript as a document that people read: Markdown, or one HTML file that loads and runs nothing."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from workbench.transcripts.folding import fold
from workbench.transcripts.models import MAIN_LANE, CallRecord, Transcript, TranscriptEvent

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_SAID = {"prompt": "User", "reply": "Agent", "reasoning": "Reasoning", "compaction": "Compacted", "notice": "Notice"}
_BACKTICKS = re.compile(r"`+")
# A title's or a name's; an underscore within a word is none, and around one it does no harm.
_MARKUP = re.compile(r"[\\\\`*\[\]<>!&#|~]")
_WILD = frozenset(("html_block", "html_inline", "image"))
# To the web, to somebody, or to a place beside the document: no other scheme.
_LINK = re.compile(r"(?:https?|mailto):|[^:]*(?:[/?#]|$)", re.IGNORECASE)
_END = "here it ends"
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
pre { overflow-x: auto; background: #8881; padding: .5rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.prompt { border-left: 4px solid #36c; padding-left: 1rem; } .abandoned { opacity: .5; } .meta { color: #777; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } }
"""


def to_markdown(transcript: Transcript) -> str:
    """Prompts, replies and tool calls in their order; what the agent put before the model by itself is left out.

    A text that holds HTML, images or links that aren't to the web, that would run on into what follows, or that has headings
    like those between the texts, is shown as it was written.
    """
    from markdown_it import MarkdownIt  # only for this

    parser = MarkdownIt("commonmark")
    # Else a link that it wouldn't make is text to it, and a link to who reads the document.
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    calls = {call.id: call for call in transcript.tool_calls}
    parts = [f"# {_escaped(_title(transcript))}", "", *(f"- {_escaped(line)}" for line in _about(transcript)), ""]
    lane = MAIN_LANE
    for event in _shown(transcript):
        if event.lane != lane:
            lane = event.lane
            parts += [f"---\n\nLane: {_escaped(lane)}", ""]
        if event.kind == "tool_call":
            parts += [_call_in_markdown(calls[event.call_id or ""]), ""]
        else:
            parts += [
                f"## {_heading(event)}",
                "",
                event.text if _is_tame(parser, event.text) else _fenced(event.text),
                "",
            ]
    return "\n".join(parts)


def to_html(transcript: Transcript) -> str:
    """As `to_markdown`; the texts of people and agents are rendered, the HTML in them is shown as text."""
    from markdown_it import MarkdownIt  # only for this

    renderer = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    calls = {call.id: call for call in transcript.tool_calls}
    title = html.escape(_title(transcript))
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>",
        *(f'<p class="meta">{html.escape(line)}</p>' for line in _about(transcript)),
    ]
    lane = MAIN_LANE
    for event in _shown(transcript):
        if event.lane != lane:
            lane = event.lane
            parts.append(f'<hr><p class="meta">Lane: {html.escape(lane)}</p>')
        if event.kind == "tool_call":
            parts.append(_call_in_html(calls[event.call_id or ""]))
            continue
        classes = f"{event.kind} abandoned" if event.abandoned else event.kind
        parts.append(f'<section class="{classes}"><h2>{_heading(event)}</h2>{renderer.render(event.text)}</section>')
    return "\n".join([*parts, "</body></html>", ""])


def _title(transcript: Transcript) -> str:
    prompts = (event.text for event in transcript.events if event.kind == "prompt")
    return " ".join((transcript.title or next(prompts, "") or transcript.session_id).split())[:80]


def _about(transcript: Transcript) -> Iterator[str]:
    summary = fold(transcript)
    yield f"Agent: {transcript.ref.agent}, session {transcript.session_id}"
    if transcript.cwd:
        yield f"Directory: {transcript.cwd}"
    if transcript.started_at is not None and transcript.last_active_at is not None:
        yield f"From {transcript.started_at:%Y-%m-%d %H:%M} to {transcript.last_active_at:%Y-%m-%d %H:%M} UTC"
    if summary.requests:
        yield f"Tokens: {summary.usage.input_tokens:,} in, {summary.usage.output_tokens:,} out"
    if summary.edited:
        yield f"Files written: {', '.join(summary.edited)}"


def _shown(transcript: Transcript) -> Iterator[TranscriptEvent]:
    for event in transcript.events:
        if event.kind == "tool_call" or (event.kind in _SAID and (event.text.strip() or event.kind == "compaction")):
            yield event


def _heading(event: TranscriptEvent) -> str:
    when = f", {event.at:%Y-%m-%d %H:%M:%S}" if event.at is not None else ""
    return f"{_SAID[event.kind]}{when}{', taken back' if event.abandoned else ''}"


def _outcome(call: CallRecord) -> str:
    return "no result" if call.ok is None else "ok" if call.ok else "failed"


def _call_in_markdown(call: CallRecord) -> str:
    parts = [f"**{_escaped(call.name or 'tool')}** ({_outcome(call)})"]
    return "\n\n".join([*parts, *map(_fenced, filter(None, (call.arguments, call.result)))])


def _fenced(text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def _escaped(text: str) -> str:
    """On one line, and nothing but text to Markdown."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def _is_tame(parser: MarkdownIt, text: str) -> bool:
    """Whether a text is Markdown that runs nothing, loads nothing, and ends where it ends."""
    environment: dict[str, object] = {}
    tokens = parser.parse(f"{text}\n\n{_END}\n", environment)
    last = tokens[-2] if len(tokens) > 2 else None
    if environment.get("references") or last is None or (last.level, last.content) != (1, _END):
        return False
    headings = (token for before, token in pairwise(tokens) if before.type == "heading_open")
    if any(token.content.split(",")[0].strip() in _SAID.values() for token in headings):
        return False
    inside = [child for token in tokens for child in (token, *(token.children or ()))]
    links = (str(token.attrs.get("href")) for token in inside if token.type == "link_open")
    return all(token.type not in _WILD for token in inside) and all(map(_LINK.match, links))


def _call_in_html(call: CallRecord) -> str:
    texts = "".join(f"<pre>{html.escape(text)}</pre>" for text in filter(None, (call.arguments, call.result)))
    return f"<details><summary>{html.escape(call.name or 'tool')} ({_outcome(call)})</summary>{texts}</details>"
