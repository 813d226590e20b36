// Asking the server. The token came in the address's fragment, which no server sees; it's kept for this tab alone.

const KEY = "workbench-token";

export class ApiError extends Error {
  constructor({ code, message, hint }) {
    super(message);
    this.code = code;
    this.hint = hint;
  }
}

export function keepToken(token) {
  sessionStorage.setItem(KEY, token);
}

export async function get(path, { query = {}, signal } = {}) {
  return (await ask(path, query, "application/json", signal)).json();
}

export async function getText(path, { query = {}, signal } = {}) {
  return (await ask(path, query, "*/*", signal)).text();
}

// Hands each event to `take(name, value)` as it comes; leaving by `signal` stops the server's reads.
export async function stream(path, { query = {}, signal, take }) {
  const response = await ask(path, query, "text/event-stream", signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError({ code: "cut_short", message: "The server ended before all was told." });
    const events = (rest + value).split(/\r?\n\r?\n/);
    rest = events.pop();
    for (const event of events) {
      const { name, data } = parsed(event);
      if (name === "end") return;
      if (name === "error") throw new ApiError(data.error);
      if (name) take(name, data);
    }
  }
}

function parsed(event) {
  // Without "s", a text with a separator of Unicode's in it (U+2028) would be no field.
  const fields = event.split(/\r?\n/).map((line) => line.match(/^(\w+): ?(.*)$/s)).filter(Boolean);
  const of = (name) => fields.filter(([, each]) => each === name).map(([, , value]) => value).join("\n");
  const data = of("data");
  return { name: of("event"), data: data && JSON.parse(data) };
}

async function ask(path, query, accept, signal) {
  const said = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null));
  const address = said.size ? `${path}?${said}` : path;
  const headers = { accept, authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` };
  const response = await fetch(address, { headers, signal }).catch((error) => {
    if (signal?.aborted) throw error;
    throw new ApiError({ code: "unreachable", message: "The server doesn't answer.", hint: "Is workbench serve still running?" });
  });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ApiError(body?.error ?? { code: String(response.status), message: "The server failed at this." });
}
