/** The tray of active edits on every screen: one chip for each, with undo and redo. */
import * as api from "./api.js";
import { button, fill, h, many } from "./dom.js";
import { nameOf } from "./names.js";
import { prompt } from "./parts.js";
import { differ, edits, idOf, setEdits, state, turn, watch } from "./state.js";

function verb({ action, value }) {
  if (action === "set") return `set ${short(value)}`;
  if (action === "add") return `${value < 0 ? "−" : "+"}${short(Math.abs(value))}`;
  return value === 0 ? "off" : `×${short(value)}`;
}
const short = (x) => String(Number(x.toPrecision(4))).replace("-", "−");
function scope({ positions: at }) {
  if (at === "all") return "everywhere";
  if (at === "last") return "at the last token";
  return `at ${at.length > 3 ? `${at[0]} to ${at.at(-1)}` : at.join(", ")}`;
}
export const name = (e) => idOf(e, e.target);

/** Some edits in words. */
export const editsInWords = (list) => list.map((e) => `${name(e)} ${verb(e)}`).join(", ");

/** The edits before each change, for undo; and those that were undone, for redo. */
const past = [];
const undone = [];
let turning = false;

/** Undo the last change of the edits, or redo the one undone last (`again`); false if there is none. */
export function undo(again = false) {
  const [from, to] = again ? [undone, past] : [past, undone];
  if (!from.length) return false;
  to.push(editsOf(state()));
  turning = true;
  turn(from.pop());
  turning = false;
  return true;
}
const editsOf = ({ edits, disabled }) => ({ edits, disabled });

export const undoButtons = () => [
  button("Undo", () => undo(), "btn small", { disabled: !past.length, title: "Ctrl Z" }),
  button("Redo", () => undo(true), "btn small", { disabled: !undone.length, title: "Ctrl Shift Z" }),
];

/** Show the tray in `el`; `compare` runs the comparison; `more`: what follows the buttons. */
export function mount(el, compare, more) {
  const note = h("p.faint", { role: "status" });
  const noted = () => later(note, edits()).catch(api.fail);
  const draw = () => {
    const list = edits();
    noted();
    el.hidden = !list.length;
    if (!list.length) return;
    const any = list.some((e) => e.on);
    const flipAll = () => setEdits(list.map((e) => ({ ...e, on: !any })));
    fill(el, [
      h("div.tray-head", [
        h("h2", many(list.length, "edit")),
        list.map((e, i) => chip(e, i, list)),
        h("span.spacer"),
        undoButtons(),
        button(any ? "Bypass all" : "Switch all on", flipAll, "btn small"),
        button("Run and compare", compare, "btn small main"),
        more,
      ]),
      note,
    ]);
  };
  watch((next, before) => {
    if (next.prompt !== before.prompt) noted();
    if (!differ(next, before, "edits", "disabled")) return;
    if (!turning) {
      past.push(editsOf(before));
      undone.length = 0;
    }
    draw();
  });
  draw();
}

function chip(e, i, list) {
  const flip = () => setEdits(edits().map((other, j) => (i === j ? { ...other, on: !e.on } : other)));
  const label = e.on ? "Switch this edit off" : "Switch this edit on";
  return h("span", { class: e.on ? "chip" : "chip off" }, [
    h("b", name(e)),
    nameOf(e, e.target),
    h("span.verb", verb(e)),
    h("span.faint", scope(e)),
    button(e.on ? "●" : "○", flip, "", { "aria-label": label, title: "On or off" }),
    button("×", () => setEdits(list.toSpliced(i, 1)), "", { "aria-label": "Remove this edit", title: "Remove" }),
  ]);
}

/** Note which edits are at positions after the prompt: they change only its continuation. */
async function later(note, list) {
  const placed = list.filter((e) => e.on && Array.isArray(e.positions));
  fill(note);
  if (!placed.length) return;
  const n = (await api.get("/tokenize", { text: prompt() }, { channel: "tray" })).ids.length;
  const after = placed.filter((e) => e.positions.some((p) => p >= n));
  if (after.length)
    fill(note, [
      `Beyond the prompt’s ${many(n, "token")} an edit acts in the continuation only: ` +
        `${after.map((e) => `${name(e)} ${scope(e)}`).join(", ")}.`,
    ]);
}

/** Add an edit in place of an earlier one of the same kind on the same part. */
export function add(edit) {
  const rest = edits().filter((e) => differ(e, edit, "target", "layer", "index", "action"));
  setEdits([...rest, { positions: "all", on: true, ...edit }], false);
}

/** An edit of a memory, at all positions. */
export const edited = ({ layer, index }, action, value) =>
  /** @type {any} */ ({ target: "coefficient", layer, index, action, value, positions: "all" });

/** Add the edit that switches a memory or a head off. */
export const off = (one, target = "coefficient") => add({ ...edited(one, "scale", 0), target });

/** Add the same edit for each of several memories or heads. */
export const addAll = (list, action, value, target = "coefficient") =>
  replace(list.map((one) => ({ ...edited(one, action, value), target, on: true })));

/** Add edits as one step of undo, in place of earlier ones of the same parts. */
export function replace(list) {
  const names = list.map(name);
  setEdits([...edits().filter((e) => !names.includes(name(e))), ...list]);
}
