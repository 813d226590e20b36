// Which view is shown: the address's fragment says it, and leaving a view ends what it asked for.

import { keepToken } from "./api.js";
import { conversation, ownConversation } from "./conversation.js";
import { h, problem, say } from "./dom.js";
import { agents } from "./agents.js";
import { own } from "./own.js";
import { usage } from "./usage.js";

const main = document.getElementById("main");
let leaving = new AbortController();

function place() {
  const [path, query] = location.hash.slice(1).split("?");
  return { parts: path.split("/").slice(1).map(decoded), query: new URLSearchParams(query) };
}

// What somebody typed, or a chat cut off, may be no encoding.
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function viewOf(parts) {
  if (parts[0] === "usage") return ["usage", usage];
  if (parts[0] === "own") return ["own", parts[1] ? ownConversation : own];
  return ["sessions", parts[0] === "transcripts" && parts[2] ? conversation : agents];
}

async function show() {
  const token = location.hash.match(/^#token=(.+)$/);
  if (token) {
    keepToken(token[1]);
    history.replaceState(null, "", "#/");
  }
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const { parts, query } = place();
  const [name, view] = viewOf(parts);
  for (const tab of document.querySelectorAll("nav a")) {
    if (tab.dataset.view === name) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  say("");
  main.replaceChildren();
  scrollTo(0, 0);
  try {
    await view({ main, parts, query, signal });
  } catch (error) {
    if (signal.aborted) return;
    say("");
    for (const bar of main.querySelectorAll("progress")) bar.hidden = true;
    if (error.code === "unauthorized") main.replaceChildren(asking(error));
    else main.append(problem(error));
  }
}

function asking(error) {
  const field = h("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const submit = (event) => {
    event.preventDefault();
    keepToken(field.value.trim());
    show();
  };
  const form = h("form", { submit, class: "asking" }, h("label", { for: "token" }, "Token"), field, h("button", {}, "Open"));
  return h("section", { class: "card" }, h("h1", {}, "Who asks?"), problem(error), form);
}

addEventListener("hashchange", show);
// The fragment is the place: a jump within the page mustn't take it.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const field = document.querySelector("input[type=search]");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const rows = [...document.querySelectorAll(".rows a")];
    const at = rows.indexOf(document.activeElement);
    if (at < 0) return;
    event.preventDefault();
    rows[at + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
  }
});
show();
