// One session: who said what, which tools were called, what they changed.

import { get, getText } from "./api.js";
import { clock, cost, count, h, number, oneLine, problem, say, short, time, visible } from "./dom.js";

const SAID = { prompt: "User", reply: "Agent", reasoning: "Reasoning", context: "Context", compaction: "Compacted", notice: "Notice" };
const FOLDED = new Set(["reasoning", "context", "notice"]);
const TELLING = ["command", "cmd", "file_path", "filePath", "path", "pattern", "query", "url", "description", "prompt"];
const LONGEST = 6000;
const MOST_LINES = 1500;

export async function ownConversation({ main, parts, query, signal }) {
  const filter = { agent: "workbench", project: query.get("workspace"), limit: 1000 };
  const { sessions } = await get("/v1/transcripts", { query: filter, signal });
  const head = sessions.find(({ ref }) => ref.session_id === parts[1]);
  if (!head) throw Object.assign(new Error("This session has no conversation."), { code: "no_conversation" });
  await conversation({ main, parts: ["transcripts", "workbench", head.ref.path], signal });
}

export async function conversation({ main, parts: [, agent, id], signal }) {
  const path = `/v1/transcripts/${encodeURIComponent(agent)}/${encodeURIComponent(id)}`;
  say("Reading the session");
  const first = await get(path, { signal });
  say("");
  document.title = `${oneLine(titled(first), 60)} · workbench`;
  signal.addEventListener("abort", () => { document.title = "workbench"; });

  const events = h("ol", { class: "events", "aria-label": "Conversation" });
  const lane = h("select", { "aria-label": "Lane", change: () => filter(events) });
  const filter = (among) => { for (const each of among.children) each.hidden = lane.value !== "" && each.dataset.lane !== lane.value; };
  lane.append(h("option", { value: "" }, "Every lane"), ...first.lanes.map((each) => h("option", { value: each.id }, laneName(each))));
  const names = new Map(first.lanes.map((each) => [each.id, laneName(each)]));
  let cursor = null;
  let shown = 0;
  const more = h("button", { class: "more", click: load }, "Show more");
  const end = h("p", { class: "hint" });

  main.append(head(first, agent, path, signal, first.lanes.length > 1 && lane), events, more, end);
  add(first);
  // What comes next is read when it's about to be seen.
  const watch = new IntersectionObserver(([entry]) => { if (entry.isIntersecting && !more.disabled && !more.hidden) load(); }, { rootMargin: "600px" });
  watch.observe(more);
  signal.addEventListener("abort", () => watch.disconnect());

  function add(page) {
    cursor = page.next_cursor;
    more.hidden = cursor == null;
    const calls = new Map(page.tool_calls.map((call) => [call.id, call]));
    const edits = new Map();
    for (const edit of page.edits) edits.set(edit.call_id, [...(edits.get(edit.call_id) ?? []), edit]);
    const diffs = new Map();
    for (const diff of page.diffs) diffs.set(diff.call_id, [...(diffs.get(diff.call_id) ?? []), diff]);
    for (const each of page.events) {
      const item = each.kind === "tool_call" ? callItem(each, calls.get(each.call_id), edits.get(each.call_id) ?? [], diffs.get(each.call_id) ?? [])
        : each.kind in SAID && (each.text.trim() || each.kind === "compaction") ? said(each) : null;
      if (!item) continue;
      shown += 1;
      item.dataset.lane = each.lane;
      if (each.lane !== "main") {
        item.classList.add("aside");
        item.querySelector("summary, .heading").append(h("span", { class: "lane" }, names.get(each.lane) ?? visible(each.lane)));
      }
      if (each.abandoned) {
        item.classList.add("abandoned");
        item.querySelector("summary, .heading").append(h("span", { class: "lane" }, "taken back"));
      }
      events.append(item);
    }
    filter(events);
    end.textContent = cursor == null ? (shown ? `The end: ${count(shown, "step")}.` : "Nothing was said in this session.") : "";
  }

  async function load() {
    more.disabled = true;
    more.textContent = "Reading…";
    try {
      const page = await get(path, { query: { cursor }, signal });
      add(page);
    } catch (error) {
      if (signal.aborted) return;
      watch.disconnect();
      more.before(problem(error));
    }
    more.disabled = false;
    more.textContent = "Show more";
  }
}

const titled = (page) => page.title || page.events.find((each) => each.kind === "prompt")?.text || page.session_id || "Session";
const laneName = (lane) => oneLine(lane.id === "main" ? "main" : lane.name || lane.id, 60);

function head(page, agent, path, signal, lane) {
  const used = page.usage;
  const facts = [
    ["Agent", agent],
    ["Session", visible(page.session_id)],
    ["Directory", page.cwd && visible(page.cwd)],
    ["Branch", page.branch && visible(page.branch)],
    ["Model", page.models.length && visible(page.models.join(", "))],
    ["Last active", time(page.last_active_at)],
    ["Tokens", (used.input_tokens || used.output_tokens) && `${short(used.input_tokens)} in, ${short(used.output_tokens)} out`],
    ["Cost", used.cost_usd != null && cost(used.cost_usd)],
    ["Not readable", page.skipped && count(page.skipped, "record")],
  ].filter(([, value]) => value);
  const edited = Object.entries(page.edited);
  return h("header", { class: "session" },
    h("h1", {}, oneLine(titled(page), 160)),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    edited.length > 0 && h("details", { class: "edited" },
      h("summary", {}, `${count(edited.length, "file")} written`),
      h("ul", {}, edited.slice(0, 500).map(([file, times]) => h("li", {}, h("code", {}, visible(file)), times > 1 && ` ×${number(times)}`)))),
    h("div", { class: "actions" }, lane, save("markdown", "md"), save("html", "html")));

  function save(format, extension) {
    const click = async (event) => {
      const button = event.currentTarget;
      button.disabled = true;
      try {
        const text = await getText(`${path}/export`, { query: { format }, signal });
        const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
        h("a", { href: address, download: `session.${extension}` }).click();
        URL.revokeObjectURL(address);
      } catch (error) {
        if (!signal.aborted) button.after(problem(error));
      }
      button.disabled = false;
    };
    return h("button", { click }, format === "html" ? "Export HTML" : "Export Markdown");
  }
}

function said(event) {
  const heading = [h("span", { class: "who" }, SAID[event.kind]), clock(event.at)];
  if (FOLDED.has(event.kind)) {
    return h("li", { class: event.kind }, h("details", {}, h("summary", {}, heading, h("span", { class: "gist" }, oneLine(event.text, 120))), words(event.text)));
  }
  return h("li", { class: event.kind }, h("div", { class: "heading" }, heading), words(event.text));
}

function callItem(event, call, edits, diffs) {
  if (!call) return null;
  const outcome = call.ok == null ? ["none", "no result"] : call.ok ? ["ok", "ok"] : ["failed", "failed"];
  const summary = h("summary", {},
    h("span", { class: "tool" }, oneLine(call.name, 60) || "tool"),
    h("span", { class: "gist" }, edits.length ? oneLine(edits.map((edit) => edit.path).join(", "), 160) : gist(call.arguments)),
    h("span", { class: `outcome ${outcome[0]}` }, outcome[1]),
    clock(event.at));
  const body = [
    diffs.map((diff) => [diffs.length > 1 && diff.path && h("p", { class: "file" }, visible(diff.path)), diffOf(diff.text)]),
    !diffs.length && call.arguments && section("Arguments", pretty(call.arguments)),
    call.result && section("Result", call.result),
  ];
  return h("li", { class: "call" }, h("details", { open: diffs.length > 0 }, summary, body));
}

const section = (name, text) => [h("p", { class: "file" }, name), words(text, "pre")];

// A long text is cut, and the rest one press away.
function words(text, tag = "div") {
  if (!text) return null;
  const whole = visible(text);
  if (whole.length <= LONGEST) return h(tag, { class: "words" }, whole);
  const element = h(tag, { class: "words" }, whole.slice(0, LONGEST));
  const rest = h("button", { class: "rest", click: () => { element.textContent = whole; rest.remove(); } }, `Show ${number(whole.length - LONGEST)} more characters`);
  return [element, rest];
}

function diffOf(text) {
  const lines = text.split("\n");
  const shown = lines.slice(0, MOST_LINES).map((line) => h("span", { class: kindOf(line) }, `${visible(line)}\n`));
  if (lines.length > MOST_LINES) shown.push(h("span", { class: "at" }, `… ${count(lines.length - MOST_LINES, "more line")}\n`));
  return h("pre", { class: "diff" }, shown);
}

function kindOf(line) {
  if (/^(@@|\*\*\* |--- |\+\+\+ )/.test(line)) return "at";
  return line.startsWith("+") ? "add" : line.startsWith("-") ? "gone" : "same";
}

function parsed(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" ? value : null;
  } catch {
    return null;
  }
}

function gist(text) {
  const given = parsed(text);
  const telling = TELLING.map((name) => given?.[name]).find((value) => typeof value === "string" || Array.isArray(value));
  return oneLine(Array.isArray(telling) ? telling.join(" ") : (telling ?? text), 160);
}

function pretty(text) {
  const given = parsed(text);
  return given ? JSON.stringify(given, null, 2) : text;
}
