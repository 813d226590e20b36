// Tokens and costs, as the sessions recorded them.

import { stream } from "./api.js";
import { cost, h, link, number, say, short, visible } from "./dom.js";

const GROUPS = { day: "Day", model: "Model", project: "Directory", agent: "Agent" };

export async function usage({ main, query, signal }) {
  const by = query.get("by") in GROUPS ? query.get("by") : "day";
  const since = query.get("since") ?? "";
  const day = h("input", { type: "date", value: since, "aria-label": "Since", change: () => go({ since: day.value }) });
  const go = (changed) => { location.hash = link(["usage"], { by, ...(since && { since }), ...changed }).slice(1); };
  const tabs = Object.entries(GROUPS).map(([name, label]) =>
    h("a", { href: link(["usage"], { by: name, ...(since && { since }) }), "aria-current": name === by && "true" }, label));
  const bar = h("progress", { "aria-label": "Adding up" });
  main.append(
    h("h1", { class: "unseen" }, "Usage"),
    h("div", { class: "filters" }, h("div", { class: "tabs", role: "group", "aria-label": "Add up by" }, tabs), h("label", {}, "Since ", day)),
    bar,
  );
  let report = null;
  await stream("/v1/transcripts/usage", {
    query: { by, since },
    signal,
    take(name, item) {
      if (name === "usage") report = item;
      else if (item.total) {
        bar.max = item.total;
        bar.value = item.done;
        say(`Added up ${number(item.done)} of ${number(item.total)} sessions`);
      }
    },
  });
  bar.remove();
  say("");
  const rows = by === "day" ? [...report.rows].reverse() : report.rows;
  if (!rows.length) return main.append(h("p", { class: "empty" }, "Nothing was used, as far as the sessions tell."));
  main.append(cards(report.total), table(GROUPS[by], rows, report.total));
  if (report.total.without_cost) {
    main.append(h("p", { class: "hint" }, `${number(report.total.without_cost)} requests have no recorded cost; `, h("code", {}, "workbench transcripts usage --prices FILE"), " works them out."));
  }
  if (report.unread.length) main.append(h("p", { class: "hint" }, `${number(report.unread.length)} sessions can't be read, and aren't counted.`));
}

function cards(total) {
  const card = (label, value) => h("div", { class: "card figure" }, h("dt", {}, label), h("dd", {}, value));
  return h("dl", { class: "figures" },
    card("Cost", cost(total.cost_usd, total.without_cost, total.requests)),
    card("Requests", short(total.requests)),
    card("Input", short(total.input_tokens)),
    card("Cached", total.input_tokens ? `${Math.round((100 * total.cache_read_tokens) / total.input_tokens)}%` : "–"),
    card("Output", short(total.output_tokens)));
}

function table(label, rows, total) {
  const most = Math.max(...rows.map((row) => row.input_tokens + row.output_tokens), 1);
  const head = [label, "Sessions", "Requests", "Input", "Cached", "Output", "Cost"];
  const cells = (row, name) => h("tr", {},
    h("th", { scope: "row" }, name,
      name !== "Total" && h("meter", { max: most, value: row.input_tokens + row.output_tokens, "aria-hidden": "true" })),
    [row.sessions, row.requests, row.input_tokens, row.cache_read_tokens, row.output_tokens].map((value) => h("td", { title: number(value) }, short(value))),
    h("td", {}, cost(row.cost_usd, row.without_cost, row.requests)));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Usage" },
    h("table", {},
      h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows.map((row) => cells(row, visible(row.name)))),
      h("tfoot", {}, cells(total, "Total"))));
}
