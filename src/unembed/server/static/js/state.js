/**
 * What the page shows, all of it in the address: `#/screen/path?prompt=...&position=6&layer=3&edits=...`. A link
 * restores it anywhere
 * the same model is served. Within a screen the address follows when the page has drawn: a browser works on each change
 * of it while the model could, and refuses changes when they come as fast as from an arrow that is held down.
 */

const DEFAULTS = {
  // What the model runs on.
  prompt: "",
  edits: "",
  disabled: "",
  other: "",
  // What is selected.
  position: "",
  layer: "",
  layers: "",
  stage: "post",
  token: "",
  against: "",
  single: "",
  memory: "",
  compared: "",
  head: "",
  // How the trace is drawn.
  metric: "probability",
  stages: "post",
  pins: "",
  diff: "",
  flip: "",
  fit: "",
  columns: "",
  only: "",
  events: "",
  scale: "",
  by: "component",
  effects: "",
  alone: "",
  // The other screens.
  part: "ffn",
  sort: "effect",
  side: "all",
  coverage: "",
  query: "",
  text: "",
  new_tokens: "",
  seed: "",
  point: "resid_pre",
  direction: "denoising",
  patched: "",
  colour: "",
  view: "",
  // The page itself.
  model: "",
  tour: "",
  session: "",
};
const LATER = 200; // milliseconds
let current = read();
let how = ""; // the address is to follow
let timer = 0;
const watchers = [];

/** The state now: `{screen, path, ...keys}`. Read only. */
export const state = () => current;

function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(safeDecode);
  const found = { ...DEFAULTS, screen: parts[0] || "trace", path: parts.slice(1) };
  for (const [name, value] of new URLSearchParams(query || "")) if (name in DEFAULTS) found[name] = value;
  return found;
}

function safeDecode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The address of a state that differs from this one. */
export function link(change) {
  const next = { ...current, ...change };
  const query = new URLSearchParams();
  for (const name of Object.keys(DEFAULTS))
    if (next[name] !== DEFAULTS[name] && next[name] !== null) query.set(name, next[name]);
  const path = [next.screen, ...next.path].map(encodeURIComponent).join("/");
  return query.size ? `#/${path}?${query}` : `#/${path}`;
}

/** Change the state. `push`: a step that Back undoes. The address follows soon; at once where another screen opens. */
export function go(change, push = true) {
  if (push) follow();
  const before = current;
  if (change.screen && !change.path) change = { path: [], ...change };
  current = { ...current, ...change };
  how = push ? "pushState" : how || "replaceState";
  clearTimeout(timer);
  timer = setTimeout(follow, LATER);
  if (change.path) follow();
  tell(before);
}

/** Let the address say what the page shows, now rather than soon. */
function follow() {
  const address = link({});
  if (how && address !== location.hash) history[how](null, "", address);
  how = "";
}

/** A change that Back does not undo. */
export const turn = (change) => go(change, false);

/** Whether any of these parts of the state differs. */
export const differ = (now, before, ...names) => names.some((name) => now[name] !== before[name]);

/** Whether what a screen asks of the model differs: it was opened, or the prompt or the edits are others. */
export const asksAnew = (now, before) => differ(now, before, "screen", "prompt", "edits", "disabled");

/** Put the state of an address, `#/...`, in the place of this one. */
export function goTo(address) {
  history.replaceState(null, "", address);
  reread();
}

/** Be told of changes: `on(state, before)`. Returns how to stop. */
export function watch(on) {
  watchers.push(on);
  return () => watchers.splice(watchers.indexOf(on), 1);
}

function tell(before) {
  for (const on of [...watchers]) on(current, before);
}

function reread() {
  const before = current;
  const address = link({});
  how = "";
  current = read();
  returning = true;
  if (link({}) !== address) tell(before);
  returning = false;
}

/** Whether the state that watchers hear of now is one that the page had before: Back, Forward, a saved address. */
export const isReturning = () => returning;
let returning = false;

addEventListener("popstate", reread);
addEventListener("pagehide", follow);

/** How many routed experts a layer has and how many memories each, by layer; without an entry where it has none. */
let experts = {};

/** Take the experts of the model that is shown. */
export const setExperts = (found) => {
  experts = found ?? {};
};

/** A memory as `L5M278`, of an expert `L12E7M345` or `L12SM3` (the shared one), or a head as `L5H1`: its written form. */
export function idOf({ layer, index }, kind = "memory") {
  const [n, width] = (kind !== "head" && experts[layer]) || [0, 1];
  if (!n) return `L${layer}${kind === "head" ? "H" : "M"}${index}`;
  return index < n * width
    ? `L${layer}E${Math.floor(index / width)}M${index % width}`
    : `L${layer}SM${index - n * width}`;
}

/** The memory or head that a text names: `L5M278` or `5.278`, `L12E7M345`, `L5H1`; null where it names none. */
export function parseId(text) {
  const found = /^\s*l?(\d+)\s*(?:e(\d+)\s*m|(s)m|([.mhd]))\s*(\d+)\s*$/i.exec(text);
  if (!found) return null;
  const [layer, expert, number] = [1, 2, 5].map((i) => Number(found[i]));
  const [n, width] = experts[layer] ?? [0, 1];
  if ((found[2] || found[3]) && !n) return null;
  const first = found[2] ? expert * width : found[3] ? n * width : 0;
  return { layer, index: first + number, kind: /h/i.test(found[4] ?? "") ? "head" : "memory" };
}

/** The edits of the tray: `[{target, layer, index, action, value, positions, on}]`. */
export function edits(text = current.edits) {
  const disabled = new Set(current.disabled.split(",").filter(Boolean));
  return text
    .split(";")
    .filter(Boolean)
    .flatMap((one, i) => {
      const found = /^(L[\dEHMS]+):(set|scale|add):(-?[\d.e+-]+)@(all|last|[\d,-]+)$/.exec(one);
      const edited = found && parseId(found[1]);
      if (!edited || !Number.isFinite(Number(found[3]))) return [];
      const [, , action, value, where] = found;
      return [
        {
          target: edited.kind === "head" ? "head" : "coefficient",
          layer: edited.layer,
          index: edited.index,
          action,
          value: Number(value),
          positions: where === "all" || where === "last" ? where : where.split(",").map(Number),
          on: !disabled.has(String(i)),
        },
      ];
    });
}

/** Edits as text for the address. */
export const written = (list) =>
  list
    .map((e) => {
      const where = Array.isArray(e.positions) ? e.positions.join(",") : e.positions;
      return `${idOf(e, e.target)}:${e.action}:${e.value}@${where}`;
    })
    .join(";");

/** Put a list of edits into the state. */
export function setEdits(list, push) {
  const disabled = list.flatMap((e, i) => (e.on === false ? [i] : [])).join(",");
  go({ edits: written(list), disabled }, push);
}

/** The edits that are switched on, as the server takes them. */
export const activeEdits = () =>
  edits()
    .filter((e) => e.on)
    .map(({ on, ...edit }) => edit);
