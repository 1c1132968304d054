/**
 * The state of the page, all of it in the address: `#/screen/path?prompt=...&position=6&layer=3&edits=...`. A link
 * restores it wherever the same model is served. Within a screen the address is updated after the page was drawn:
 * each update costs processor time, and browsers refuse updates as frequent as those of a repeated arrow key.
 */

/** The names of the parts of a state, in the order of the address; a part that `GIVEN` does not name is empty by default. */
const NAMES =
  "prompt chat edits disabled other " + // the model's input; `chat`: the message that the prompt is written from
  "position layer layers stage token against single memory compared head " + // the selection
  "metric stages pins diff flip fit columns only rows events scale by effects alone " + // display of the trace
  "part sort side coverage query text new_tokens seed point direction patched colour view " + // the other screens
  "unpaired node boxes " + // the picture of a circuit
  "model index tour session"; // the page itself
const GIVEN = {
  stage: "post",
  metric: "probability",
  stages: "post",
  by: "component",
  part: "ffn",
  sort: "effect",
  side: "all",
  point: "resid_pre",
  direction: "denoising",
};
const DEFAULTS = Object.fromEntries(NAMES.split(" ").map((name) => [name, GIVEN[name] ?? ""]));
const LATER = 200; // milliseconds
let readable = (found, _unknown) => found;
let current = read();
let how = ""; // the address is not up to date
let timer = 0;
const watchers = [];

/** The state now: `{screen, path, ...keys}`. Read only. */
export const state = () => current;

function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const steps = parts(path, "/").map(safeDecode);
  const found = { ...DEFAULTS, screen: steps[0] || "trace", path: steps.slice(1) };
  const unknown = [];
  for (const [name, value] of new URLSearchParams(query || ""))
    if (name in DEFAULTS) found[name] = value;
    else unknown.push(name);
  return readable(found, unknown);
}

/** From now on the state of every address, also of the present one, is what `on(found, unknown)` returns for it. */
export function readWith(on) {
  readable = on;
  current = read();
}

function parts(text, by) {
  return text.split(by).filter(Boolean);
}

function safeDecode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The address of the present state with some parts changed. */
export function link(change) {
  const next = { ...current, ...change };
  const query = new URLSearchParams();
  for (const name of Object.keys(DEFAULTS))
    if (next[name] !== DEFAULTS[name] && next[name] !== null) query.set(name, next[name]);
  const path = [next.screen, ...next.path].map(encodeURIComponent).join("/");
  return query.size ? `#/${path}?${query}` : `#/${path}`;
}

/** The parts that another prompt resets: the question about its next token, and the message that it was written from. */
const OF_PROMPT = { chat: "", token: "", against: "", single: "" };

/** Change the state. `push`: Back undoes it. The address is updated soon after, or at once for another screen. */
export function go(change, push = true) {
  if (push) follow();
  if (current.prompt && (change.prompt ?? current.prompt) !== current.prompt) change = { ...OF_PROMPT, ...change };
  const before = current;
  if (change.screen && !change.path) change = { path: [], ...change };
  current = { ...current, ...change };
  how = push ? "pushState" : how || "replaceState";
  clearTimeout(timer);
  timer = setTimeout(follow, LATER);
  if (change.path) follow();
  notify(before);
}

function follow() {
  const address = link({});
  if (how && address !== location.hash) history[how](null, "", address);
  how = "";
}

/** Change the state so that Back does not undo it. */
export const turn = (change) => go(change, false);

/** Whether any of these parts of the state differs. */
export const differ = (now, before, ...names) => names.some((name) => now[name] !== before[name]);

/** Whether a screen must send new requests: it was opened, or the prompt or the edits changed. */
export const asksAnew = (now, before) => differ(now, before, "screen", "prompt", "edits", "disabled");

/** Replace the state by that of an address, `#/...`. */
export function goTo(address) {
  history.replaceState(null, "", address);
  reread();
}

/** Call `on(state, before)` at every change. Returns a function that ends it. */
export function watch(on) {
  watchers.push(on);
  return () => watchers.splice(watchers.indexOf(on), 1);
}

function notify(before) {
  for (const on of [...watchers]) on(current, before);
}

function reread() {
  const before = current;
  const address = link({});
  how = "";
  current = read();
  returning = true;
  if (link({}) !== address) notify(before);
  returning = false;
}

/** Whether the current change is a return to an earlier state: Back, Forward, or a saved address. */
export const isReturning = () => returning;
let returning = false;

addEventListener("popstate", reread);
addEventListener("pagehide", follow);

/** The number of routed experts and of memories in each, by layer; layers without experts have no entry. */
let experts = {};

export const setExperts = (found) => {
  experts = found ?? {};
};

/**
 * The id of a head (`L5H1`) or a memory: `L5M278`, in a routed expert `L12E7M345`, in the shared one `L12SM3`; `-L5M278`
 * is a memory where its coefficient is negative.
 */
export function idOf({ layer, index, pole = "" }, kind = "memory") {
  const [n, width] = (kind !== "head" && experts[layer]) || [0, 1];
  const sign = pole === "negative" ? "-" : "";
  if (!n) return `${sign}L${layer}${kind === "head" ? "H" : "M"}${index}`;
  return index < n * width
    ? `${sign}L${layer}E${Math.floor(index / width)}M${index % width}`
    : `${sign}L${layer}SM${index - n * width}`;
}

/** Read an id as `idOf` writes it, or `5.278`; null if the text is not an id. */
export function parseId(text) {
  const found = /^\s*[-\u2212]?l?(\d+)\s*(?:e(\d+)\s*m|(s)m|([.mhd]))\s*(\d+)\s*$/i.exec(text);
  if (!found) return null;
  const negative = /^\s*[-\u2212]/.test(text);
  if (negative && /h/i.test(found[4] ?? "")) return null;
  const [layer, expert, number] = [1, 2, 5].map((i) => Number(found[i]));
  const [n, width] = experts[layer] ?? [0, 1];
  if ((found[2] || found[3]) && !n) return null;
  const first = found[2] ? expert * width : found[3] ? n * width : 0;
  const one = { layer, index: first + number, kind: /h/i.test(found[4] ?? "") ? "head" : "memory" };
  return negative ? { ...one, pole: "negative" } : one;
}

/** The ids of the pinned tokens. */
export const pinned = () => parts(current.pins, " ").slice(0, MOST_PINS);
export const MOST_PINS = 5;

/** The path of a memory in the API. */
export const memoryPath = ({ layer, index }) => `/memories/${layer}/${index}`;

/** The change of state that opens the card of a memory or head. */
export const cardOf = (one, kind = "memory") =>
  kind === "head" ? { screen: "heads", head: idOf(one, kind) } : { screen: "memory", memory: idOf(one) };

/** Open the card of an id; false if the text is not an id. */
export function openCard(text) {
  const found = parseId(text);
  if (found) go(cardOf(found, found.kind));
  return found !== null;
}

/** Parse one edit of the address to `{target, layer, index, action, value, positions}`; null if it is not an edit. */
export function oneEdit(text) {
  const found = /^(L[\dEHMS]+):(set|scale|add):(-?[\d.e+-]+)@(all|last|-?\d+(?:,-?\d+)*)$/.exec(text);
  const edited = found && parseId(found[1]);
  if (!edited || !Number.isFinite(Number(found[3]))) return null;
  const [, , action, value, where] = found;
  return {
    target: edited.kind === "head" ? "head" : "coefficient",
    layer: edited.layer,
    index: edited.index,
    action,
    value: Number(value),
    positions: where === "all" || where === "last" ? where : where.split(",").map(Number),
  };
}

/** The `edits` of a state that `on(text)` accepts, and which of those are `disabled`. */
export function readableEdits(found, on) {
  const off = parts(found.disabled, ",");
  const all = parts(found.edits, ";").map((text, i) => ({ text, off: off.includes(String(i)) }));
  const rest = all.filter(({ text }) => on(text));
  return {
    edits: rest.map(({ text }) => text).join(";"),
    disabled: rest.flatMap((one, i) => (one.off ? [i] : [])).join(","),
  };
}

/** The edits of the tray: `[{target, layer, index, action, value, positions, on}]`. */
export function edits() {
  const off = parts(current.disabled, ",");
  return parts(current.edits, ";").map((text, i) => ({ ...oneEdit(text), on: !off.includes(String(i)) }));
}

/** Edits as text for the address. */
export function written(list) {
  const where = ({ positions }) => (Array.isArray(positions) ? positions.join(",") : positions);
  return list.map((e) => `${idOf(e, e.target)}:${e.action}:${e.value}@${where(e)}`).join(";");
}

/** Put a list of edits into the state. */
export function setEdits(list, push) {
  const disabled = list.flatMap((e, i) => (e.on === false ? [i] : [])).join(",");
  go({ edits: written(list), disabled }, push);
}

/** The edits that are switched on, as the API takes them. */
export const activeEdits = () =>
  edits()
    .filter((e) => e.on)
    .map(({ on, ...edit }) => edit);
