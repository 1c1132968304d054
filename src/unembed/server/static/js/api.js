/** Asking the server: the newest question of a channel wins, answers are kept, failures are typed. */

const PAGE = Math.random().toString(36).slice(2, 12);
const kept = new Map();
const running = new Map();
const KEPT = 240;
let listeners = [];

/** A failure as the server or the network tells it. */
export class Problem extends Error {
  constructor(body, status) {
    super(body.message || "something failed");
    Object.assign(this, { code: body.code, why: body.why, fix: body.fix, detail: body.detail, status });
  }
}

/** Be told when something runs: `on({running: [names], error})`. */
export function listen(on) {
  listeners.push(on);
}

function tell(error = null) {
  const names = [...running.values()].map((r) => r.what);
  for (const on of listeners) on({ running: names, error });
}

/** GET; an answer that came before is given again without asking. */
export function get(path, params = {}, { channel = path, what = "", fresh = false } = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (Array.isArray(value)) value.forEach((one) => query.append(name, one));
    else if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  const url = query.size ? `${path}?${query}` : path;
  return ask(url, { method: "GET" }, `GET ${url}`, channel, what, fresh);
}

/** POST with a JSON body. `keep`: the answer depends on the question only. */
export function post(path, body, { channel = path, what = "", keep = false } = {}) {
  const text = JSON.stringify(body);
  const init = { method: "POST", body: text, headers: { "content-type": "application/json" } };
  return ask(path, init, keep ? `POST ${path} ${text}` : "", channel, what, !keep);
}

export function send(method, path, body) {
  const init = { method, body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  return ask(path, init, "", `${method} ${path} ${Math.random()}`, "", true);
}

/** What is known already, without asking. */
export const peek = (key) => kept.get(key);

/** Forget answers whose key holds a text, after something was written. */
export function forget(part) {
  for (const key of kept.keys()) if (key.includes(part)) kept.delete(key);
}

async function ask(path, init, key, channel, what, fresh) {
  if (key && !fresh && kept.has(key)) {
    const found = kept.get(key);
    kept.delete(key);
    kept.set(key, found);
    running.get(channel)?.abort.abort();
    return found;
  }
  const response = await begin(path, init, channel, what);
  try {
    const body = await response.answer.json();
    if (key) {
      kept.set(key, body);
      if (kept.size > KEPT) kept.delete(kept.keys().next().value);
    }
    return body;
  } finally {
    response.end();
  }
}

/** Lines of JSON as they come. `on(line)` is called for each; resolves when the stream has ended. */
export async function stream(path, body, on, { channel = path, what = "" } = {}) {
  const init = { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  const { answer, end } = await begin(path, init, channel, what);
  try {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let ended = false;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const item = JSON.parse(line);
        if (item.kind === "error") throw new Problem(item, 200);
        if (item.kind === "done") ended = true;
        else on(item);
      }
    }
    if (!ended) throw new Error("cut");
  } catch (error) {
    if (error instanceof Problem) throw error;
    if (error.name === "AbortError") throw new Problem({ code: "superseded", message: "replaced" }, 409);
    throw new Problem({ code: "cut", message: "the server stopped in the middle", fix: "Start it again with unembed serve, then reload" }, 0);
  } finally {
    end();
  }
}

/** Stop what runs on a channel. */
export function cancel(channel) {
  running.get(channel)?.abort.abort();
  running.delete(channel);
  tell();
}

async function begin(path, init, channel, what) {
  running.get(channel)?.abort.abort();
  const mine = { abort: new AbortController(), what: what || path };
  running.set(channel, mine);
  if (what) tell();
  const end = () => {
    if (running.get(channel) === mine) running.delete(channel);
    if (what) tell();
  };
  try {
    const answer = await fetch(`api/v1${path}`, {
      ...init,
      signal: mine.abort.signal,
      headers: { ...init.headers, "x-client": PAGE },
    });
    if (!answer.ok) throw new Problem(await answer.json().catch(() => ({ code: "http", message: `the server said ${answer.status}` })), answer.status);
    return { answer, end };
  } catch (error) {
    end();
    if (error.name === "AbortError" || error.code === "superseded") throw new Problem({ code: "superseded", message: "replaced" }, 409);
    if (error instanceof Problem) {
      throw error;
    }
    throw new Problem({ code: "away", message: "the server does not answer", fix: "Start it again with unembed serve, then reload" }, 0);
  }
}

/** Show a failure in the status line; a question that a newer one replaced is no failure. */
export function fail(error) {
  if (error.code === "superseded") return;
  console.info("unembed:", error.message);
  tell(error);
}
