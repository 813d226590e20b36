// The sessions of every agent, as they are found; filtered here, and searched by the server.

import { stream } from "./api.js";
import { count, h, link, number, oneLine, problem, say, size, time, visible } from "./dom.js";

const AT_ONCE = 100;

export async function agents({ main, query, signal }) {
  const sessions = [];
  const failures = [];
  let shown = AT_ONCE;
  let searching = null;

  const text = h("input", { type: "search", "aria-label": "Filter by title or directory", placeholder: "Filter by title, or search what was said", value: query.get("text"), input: render });
  const agent = h("select", { "aria-label": "Agent", change: render });
  const project = h("select", { "aria-label": "Directory", change: render });
  const form = h("form", { class: "filters", role: "search", submit: search }, text, agent, project, h("button", {}, "Search"));
  const bar = h("progress", { "aria-label": "Listing" });
  const list = h("ul", { class: "rows", "aria-label": "Sessions" });
  const more = h("button", { class: "more", hidden: true, click: () => { shown += AT_ONCE; render(); } }, "Show more");
  const notes = h("details", { class: "notes", hidden: true });
  main.append(h("h1", { class: "unseen" }, "Sessions of coding agents"), form, bar, list, more, notes);

  let drawing = 0;
  // Listings come quickly: what is found is drawn a few times a second, and not each time.
  const soon = () => { drawing ||= setTimeout(() => { drawing = 0; if (!signal.aborted) render(); }, 150); };
  await stream("/v1/transcripts", {
    signal,
    take(name, item) {
      if (name === "session") { sessions.push(item); soon(); }
      else if (name === "failure" && item.error._tag !== "RootMissing") failures.push(item);
      else if (name === "progress" && !searching) say(`${count(item.done, "session")} so far`);
    },
  });
  bar.hidden = true;
  render();

  function render() {
    if (searching) return;
    options(agent, "Every agent", sessions.map((each) => each.ref.agent));
    options(project, "Every directory", sessions.map((each) => each.cwd).filter(Boolean));
    const wanted = text.value.trim().toLowerCase();
    const found = sessions
      .filter((each) => (!agent.value || each.ref.agent === agent.value) && (!project.value || each.cwd === project.value))
      .filter((each) => !wanted || [each.title, each.first_prompt, each.cwd, each.ref.session_id].some((one) => one?.toLowerCase().includes(wanted)))
      .sort((one, other) => Date.parse(other.last_active_at) - Date.parse(one.last_active_at));
    const names = new Map();
    for (const { ref } of sessions) names.set(key(ref), (names.get(key(ref)) ?? 0) + 1);
    const at = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    list.replaceChildren(...found.slice(0, shown).map((each) => row(each, names)));
    if (at) [...list.querySelectorAll("a")].find((each) => each.getAttribute("href") === at)?.focus();
    more.hidden = found.length <= shown;
    more.textContent = `Show more of ${number(found.length)}`;
    if (bar.hidden) {
      say(found.length === sessions.length ? count(found.length, "session") : `${number(found.length)} of ${count(sessions.length, "session")}`);
      if (!sessions.length) list.replaceChildren(h("li", { class: "empty" }, "No coding agent has kept a session here yet."));
      else if (!found.length) list.replaceChildren(h("li", { class: "empty" }, "Nothing has this in its title. Enter searches what was said."));
    }
    notes.hidden = !failures.length;
    notes.replaceChildren(
      h("summary", {}, `${count(failures.length, "file")} can't be read`),
      h("ul", {}, failures.slice(0, AT_ONCE).map(({ error }) => h("li", {}, h("code", {}, visible(error.path)), ` ${visible(error.message)}`))),
    );
  }

  async function search(event) {
    event.preventDefault();
    searching?.abort();
    const wanted = text.value.trim();
    if (!wanted) { searching = null; return render(); }
    searching = new AbortController();
    const own = searching.signal;
    const within = AbortSignal.any([signal, own]);
    const back = h("button", { type: "button", click: () => { searching.abort(); searching = null; bar.hidden = true; render(); } }, "Back to all sessions");
    list.replaceChildren(h("li", { class: "empty" }, back));
    more.hidden = true;
    bar.hidden = false;
    try {
      await stream("/v1/transcripts/search", {
        query: { text: wanted, agent: agent.value, project: project.value, limit: AT_ONCE },
        signal: within,
        take(name, item) {
          if (name === "match") list.append(match(item));
          else if (name === "progress") {
            bar.max = item.total;
            bar.value = item.done;
            say(`Searched ${number(item.done)} of ${count(item.total, "session")}`);
          }
        },
      });
      say(count(list.children.length - 1, "place"));
    } catch (error) {
      if (within.aborted) return;
      list.append(h("li", {}, problem(error)));
    }
    bar.removeAttribute("value");
    bar.hidden = true;
  }
}

const key = (ref) => `${ref.agent} ${ref.session_id}`;

// By its id, or, where that is several sessions' or nobody's, by its file.
const href = (ref, single) => link(["transcripts", ref.agent, single && ref.session_id ? ref.session_id : ref.path]);

function row(session, names) {
  const { ref } = session;
  return h("li", {},
    h("a", { href: href(ref, names.get(key(ref)) === 1) },
      h("span", { class: "title" }, oneLine(session.title) || oneLine(ref.session_id) || "Untitled"),
      h("span", { class: "meta" },
        h("span", { class: "agent" }, ref.agent),
        session.cwd && h("span", { class: "path" }, visible(session.cwd)),
        time(session.last_active_at),
        h("span", {}, size(session.size_bytes)))));
}

function match({ ref, event, excerpt }) {
  return h("li", {},
    h("a", { href: href(ref, false) },
      h("span", { class: "excerpt" }, visible(excerpt)),
      h("span", { class: "meta" },
        h("span", { class: "agent" }, ref.agent),
        h("span", {}, event.kind === "prompt" ? "asked" : "answered"),
        h("span", { class: "path" }, visible(ref.session_id ?? ref.path)),
        time(event.at))));
}

function options(select, all, values) {
  const names = [...new Set(values)].sort();
  if (select.options.length === names.length + 1) return;
  const chosen = select.value;
  select.replaceChildren(h("option", { value: "" }, all), ...names.map((name) => h("option", { value: name }, visible(name))));
  select.value = chosen;
}
