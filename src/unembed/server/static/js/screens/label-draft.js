/** The unsaved work on one item: its patterns and the one in the form; the browser stores it until it is saved. */

/** The parameters that name a queue on the server. */
export const settings = ({ what, seed }) => ({
  what,
  seed: Number(seed.value) || 0,
  per_layer: 10,
  random_per_layer: 5,
});

function keyOf(t, { number } = t.item) {
  const { what, seed } = settings(t);
  return `draft ${t.who.value} ${what} ${seed} ${number}`;
}

export function read(t) {
  const begun = { name: "", members: [], kind: t.queue.rules.kinds[0], confidence: "", patterns: [] };
  return { ...begun, ...JSON.parse(localStorage.getItem(keyOf(t)) ?? "{}") };
}

export const keep = (t) => localStorage.setItem(keyOf(t), JSON.stringify(t.draft));
export const drop = (t) => localStorage.removeItem(keyOf(t));
/** Store the draft of an earlier item again. */
export const restore = (t, last) => localStorage.setItem(keyOf(t, last), JSON.stringify(last.draft));

export const isBegun = ({ draft }) => !!draft.name.trim() || draft.members.length > 0;
export const isWhole = ({ draft, queue }) => !!draft.name.trim() && draft.members.length >= queue.rules.at_least;

/** Add the pattern in the form to the item's patterns. */
export function add(t) {
  const { draft } = t;
  const { name, kind, members, confidence } = draft;
  draft.patterns.push({ label: name.trim(), kind, members, ...(confidence && { confidence: Number(confidence) }) });
  Object.assign(draft, { name: "", members: [], confidence: "" });
  keep(t);
}

/** Say what the pattern in the form lacks. */
export function lacking({ draft, queue }) {
  const name = draft.name.trim();
  const least = queue.rules.at_least;
  return name
    ? `“${name}” is not saved yet: tick at least ${least} members, or clear the description.`
    : "Ticked members need a description: describe the pattern, or untick them.";
}
