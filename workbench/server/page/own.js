// Workbench's own sessions: what each overlay holds, and what was talked about in it.

import { get } from "./api.js";
import { cost, count, h, link, oneLine, say, short, size, visible } from "./dom.js";

export async function own({ main, signal }) {
  say("Looking at the sessions");
  const { sessions } = await get("/v1/sessions", { signal });
  sessions.sort((one, other) => (one.age_s ?? Infinity) - (other.age_s ?? Infinity));
  main.append(
    h("h1", { class: "unseen" }, "Sessions of workbench"),
    h("ul", { class: "rows", "aria-label": "Sessions of workbench" }, sessions.map(row)),
  );
  if (!sessions.length) main.append(h("p", { class: "empty" }, "There are no sessions yet: ", h("code", {}, "workbench exec -- COMMAND"), " starts one."));
  say(count(sessions.length, "session"));
}

function row(session) {
  const talk = session.conversation;
  const title = (talk && !talk.problem && oneLine(talk.title)) || visible(session.session);
  const about = [
    h("span", { class: "title" }, title),
    h("span", { class: "meta" },
      h("span", { class: `state ${session.sandbox.state}` }, session.sandbox.state),
      h("span", {}, visible(session.session)),
      h("span", { class: "path" }, visible(session.workspace.path)),
      h("span", {}, session.changes == null ? `${count(session.entries, "file")} not counted` : count(session.changes, "change")),
      h("span", {}, count(session.checkpoints, "checkpoint")),
      session.upper_size > 0 && h("span", {}, size(session.upper_size)),
      talk && !talk.problem && h("span", {}, count(talk.messages, "message")),
      talk?.usage.output_tokens > 0 && h("span", {}, `${short(talk.usage.input_tokens)} in, ${short(talk.usage.output_tokens)} out`),
      talk?.usage.cost_usd != null && h("span", {}, cost(talk.usage.cost_usd))),
    (session.problem || talk?.problem) && h("span", { class: "warning" }, visible(session.problem || talk.problem)),
  ];
  const readable = talk && !talk.problem && !session.workspace.path_bytes;
  return h("li", {}, readable ? h("a", { href: link(["own", session.session], { workspace: session.workspace.path }) }, about) : h("div", { class: "still" }, about));
}
