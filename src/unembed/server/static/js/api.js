/** Requests to the server. A request cancels an older one of its channel; responses are cached; failures are `Problem`s. */

const PAGE = Math.random().toString(36).slice(2, 12);
const responses = new Map();
const running = new Map();
const MOST_CACHED = 240;
const listeners = [];

/** A request that failed, with the server's explanation where it gave one. */
export class Problem extends Error {
  constructor(body, status) {
    super(body.message || "something failed");
    Object.assign(this, { code: body.code, why: body.why, fix: body.fix, detail: body.detail, status });
  }
}

/** Call `on({running: [names], error})` whenever a request begins, ends or fails. */
export function listen(on) {
  listeners.push(on);
}

function notify(error = null) {
  const names = [...running.values()].map((r) => r.what).filter(Boolean);
  for (const on of listeners) on({ running: names, error });
}

/** Send a GET request, or return its cached response unless `fresh`. */
export function get(path, params = {}, { channel = path, what = "", fresh = false } = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params))
    for (const one of [value].flat()) if ((one ?? "") !== "") query.append(name, String(one));
  const url = query.size ? `${path}?${query}` : path;
  return request(url, { method: "GET" }, `GET ${url}`, channel, what, fresh);
}

const posted = (body) => ({
  method: "POST",
  body: JSON.stringify(body),
  headers: { "content-type": "application/json" },
});

/** Send a POST request whose response depends on its body alone, or return its cached response. */
export function post(path, body, { channel = path, what = "" } = {}) {
  const init = posted(body);
  return request(path, init, `POST ${path} ${init.body}`, channel, what, false);
}

/** Send a POST request that writes something; no later request cancels it. */
export const send = (path, body) => request(path, posted(body), "", `${path} ${Math.random()}`, "", true);

export const remove = (path) => request(path, { method: "DELETE" }, "", path, "", true);

/** Return a prompt's trace, which may be cached; while it is streamed, `on(part)` is called with the layers received so far. */
export async function trace(prompt, edits, { channel = "trace", on = (_part) => {} } = {}) {
  const key = `trace ${JSON.stringify([prompt, edits])}`;
  const found = responses.get(key);
  if (found) return (cancel(channel), store(key, found));
  /** @type {any} */ const part = { stages: [], texts: {} };
  let whole = null;
  const received = (line) => {
    if (line.kind === "trace") whole = line;
    else on(joined(part, line));
  };
  await stream("/traces/stream", { prompt, edits }, received, { channel, what: "Tracing" });
  return store(key, whole);
}

/** Add the layers of a streamed line to what was received before; lists have gaps where layers are still missing. */
function joined(part, line) {
  const { stages } = part;
  for (const one of line.stages) {
    let stage = stages.find((x) => x.point === one.point);
    // the readings after the FFN are sent first and drawn last
    if (!stage) stages.unshift((stage = { point: one.point, ids: [], probabilities: [], rank_of_prediction: [] }));
    for (const name of ["ids", "probabilities", "rank_of_prediction"])
      line.layers.forEach((layer, i) => {
        stage[name][layer] = one[name][i];
      });
  }
  return Object.assign(part, line, { stages, events: [], texts: { ...part.texts, ...line.texts } });
}

/** Remove cached responses whose key contains a text, after something was written. */
export function forget(part) {
  for (const key of responses.keys()) if (key.includes(part)) responses.delete(key);
}

/** Load a JSON file of the page once: the bundled example, or the help texts of the panes. */
export const file = (name) =>
  responses.get(name) ||
  store(
    name,
    fetch(new URL(`../${name}.json`, import.meta.url)).then((answer) => answer.json()),
  );

function store(key, body) {
  responses.delete(key);
  responses.set(key, body);
  if (responses.size > MOST_CACHED) responses.delete(responses.keys().next().value);
  return body;
}

async function request(path, init, key, channel, what, fresh) {
  if (key && !fresh && responses.has(key)) return (running.get(channel)?.abort.abort(), store(key, responses.get(key)));
  const body = await answered(path, init, channel, what, (answer) => answer.json());
  return key ? store(key, body) : body;
}

/** Return a response as bytes; the browser itself caches it. */
export const binary = (path, { channel = path, what = "" } = {}) =>
  answered(path, {}, channel, what, (answer) => answer.arrayBuffer());

/** Send a POST request and call `on(line)` with each line of JSON that the server streams. */
export const stream = (path, body, on, { channel = path, what = "" } = {}) =>
  answered(path, posted(body), channel, what, (answer) => readLines(answer, on));

async function readLines(answer, on) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let last = null;
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const item = JSON.parse(line);
      last = item.kind;
      if (last === "error") throw new Problem(item, 200);
      if (last !== "done") on(item);
    }
  }
  if (last !== "done") throw new Error("cut");
}

/** Cancel the request of a channel, or all requests. */
export function cancel(channel) {
  for (const [name, one] of running) {
    if (channel && name !== channel) continue;
    one.abort.abort();
    running.delete(name);
  }
  notify();
}

/** Send a request, which cancels an older one of its channel, and return what `read(answer)` makes of the answer. */
async function answered(path, init, channel, what, read) {
  running.get(channel)?.abort.abort();
  const mine = { abort: new AbortController(), what };
  running.set(channel, mine);
  if (what) notify();
  let trouble = { code: "away", message: "the server does not answer" };
  try {
    const headers = { ...init.headers, "x-client": `${PAGE} ${channel}`.slice(0, 64) };
    const answer = await fetch(`api/v1${path}`, { ...init, signal: mine.abort.signal, headers });
    trouble = { code: "cut", message: "the server stopped in the middle" };
    if (!answer.ok) throw new Problem(await answer.json().catch(() => unexplained(answer)), answer.status);
    return await read(answer);
  } catch (error) {
    throw failed(error, trouble);
  } finally {
    if (running.get(channel) === mine) running.delete(channel);
    if (what) notify();
  }
}

const unexplained = ({ status }) => ({
  code: "http",
  message: `the server answered ${status}`,
  fix: "Try again; if it fails again, stop unembed serve and start it again",
});

function failed(error, trouble) {
  if (error instanceof Problem) return error;
  if (error.name === "AbortError") return new Problem({ code: "superseded", message: "replaced" }, 409);
  return new Problem({ ...trouble, fix: "Start it again with unembed serve, then reload" }, 0);
}

/** Show a failure in the status line. A request that a newer one replaced is not a failure. */
export function fail(error) {
  if (error.code === "superseded") return;
  console.info("unembed:", error.message);
  notify(error);
}
