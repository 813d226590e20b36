// Everything that is shown is text: nodes are made one by one, and nothing is ever parsed as markup.

// An element with its attributes and children; a function is a listener, null and false are left out.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

// Controls, formats, surrogates: invisible, or they make a text look like another one. New lines and tabs stay.
const DECEIVING = /[^\P{Cc}\n\t]|[\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu;
const JOINED = /^[\u200c\u200d\ufeff]$/u; // parts of emoji and of scripts

export function visible(text) {
  return (text ?? "").replace(/\r\n/g, "\n").replace(DECEIVING, (character) => {
    if (JOINED.test(character)) return character;
    const code = character.codePointAt(0);
    if (code < 32) return String.fromCodePoint(0x2400 + code);
    return `\\u{${code.toString(16)}}`;
  });
}

export function oneLine(text, length = 200) {
  const line = visible(text).replace(/\s+/g, " ").trim();
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}

const NUMBER = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
const UNITS = [["year", 31536000], ["month", 2592000], ["day", 86400], ["hour", 3600], ["minute", 60]];

export const count = (number, noun) => `${NUMBER.format(number)} ${noun}${number === 1 ? "" : "s"}`;
export const short = (number) => SHORT.format(number);
export const number = (value) => NUMBER.format(value);

export function size(bytes) {
  for (const [unit, length] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (bytes >= length) return `${(bytes / length).toFixed(1)} ${unit}`;
  }
  return `${bytes} B`;
}

// What is known of a cost; a plus says that some requests have none.
export function cost(usd, without = 0, requests = 0) {
  if (usd == null || (requests > 0 && without === requests)) return "–";
  return `$${usd >= 100 ? Math.round(usd).toLocaleString("en") : usd.toFixed(usd < 0.1 && usd > 0 ? 4 : 2)}${without ? "+" : ""}`;
}

// A moment, and how long ago that was; empty where it isn't known.
export function time(iso) {
  if (!iso) return null;
  const at = new Date(iso);
  const seconds = (at - Date.now()) / 1000;
  const [unit, length] = UNITS.find(([, each]) => Math.abs(seconds) >= each) ?? ["second", 1];
  return h("time", { datetime: iso, title: at.toLocaleString() }, RELATIVE.format(Math.round(seconds / length), unit));
}

export function clock(iso) {
  if (!iso) return null;
  const at = new Date(iso);
  return h("time", { datetime: iso, title: at.toLocaleString() }, at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }));
}

// Links lead to places of this page only.
export const link = (parts, query = {}) => {
  const said = new URLSearchParams(query).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${said ? `?${said}` : ""}`;
};

export function say(text) {
  document.getElementById("status").textContent = text;
}

export function problem(error) {
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("strong", {}, visible(error.message)),
    error.hint && h("p", {}, visible(error.hint)),
    error.code && h("code", {}, error.code),
  );
}
