/** What the modules expect of a browser when they are imported, without one. */
globalThis.location = { hash: "" };
globalThis.history = {
  pushState: (_state, _title, address) => (globalThis.location.hash = address),
  replaceState: (_state, _title, address) => (globalThis.location.hash = address),
};
globalThis.addEventListener = () => {};
globalThis.matchMedia = () => ({ matches: false });

const ROOT = new URL("../../src/unembed/server/static/js/", import.meta.url);

/** A module of the page. */
export const module = (name) => import(new URL(name, ROOT).href);

/** A model as the server describes it. */
export const MODEL = {
  name: "tiny",
  source: "wren",
  n_layers: 2,
  n_heads: 4,
  d_vocab: 100,
  mixers: ["attention", "attention"],
  ffns: [true, true],
  memories: [8, 8],
  can: { index: false, memories: true },
};
