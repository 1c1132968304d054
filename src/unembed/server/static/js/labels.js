/** The labels of a memory or a head, with a form for a new one; and what a pane says that needs an index. */

import * as api from "./api.js";
import { shell } from "./code.js";
import { button, fill, grouped, h, many, num, selectBox, textBox } from "./dom.js";
import * as names from "./names.js";
import { answered, pane } from "./parts.js";
import { save } from "./sharing.js";
import { go } from "./state.js";

/** Tells the other tabs of this browser that labels were written. */
const tabs = new BroadcastChannel("labels");
tabs.onmessage = () => again().then(() => dispatchEvent(new Event("labels")), api.fail);

function again() {
  api.forget("/memories/search");
  return names.load();
}

/** Load all labels again after some were written, here and in the other tabs. */
export function reload() {
  tabs.postMessage("");
  return again();
}

function buildCommands(model) {
  const named = model.source === "wren" ? "" : ` --model ${shell(model.source)}`;
  return [`unembed index build${named} --out my-index`, `unembed serve${named} --index my-index`];
}

/** Say in a pane that it needs an index, with the commands that build one and a button that estimates their cost. */
export async function noIndex(box, text) {
  const [model] = (await api.get("/models")).models;
  const cost = h("div.faint", model.can.text && button("Estimate its cost", () => estimate(cost), "quiet"));
  fill(box, [
    h("div.note.stack", [
      h("p", text),
      h("p", "No index is open. Build one, then serve it:"),
      buildCommands(model).map((command) => h("code", command)),
      cost,
    ]),
  ]);
}

/** Show the minutes and the disk space that an index needs, as measured on a part of the corpus. */
function estimate(box) {
  fill(box, "Estimating …");
  const ask = () => api.get("/index/estimate", {}, { what: "Estimating" });
  const words = ({ seconds_busy: seconds, bytes, tokens }) =>
    `About ${many(Math.ceil(seconds / 60), "minute")} and ${num(bytes / 1e6)} MB on disk, for the ` +
    `${grouped(tokens)} tokens of the shipped corpus.`;
  return answered(box, ask, words);
}

/** Save all labels as a file, one JSON object a line. */
export async function exportLabels() {
  const answer = await fetch("api/v1/annotations/export");
  save("labels.jsonl", await answer.text(), "application/x-ndjson");
}

/**
 * Show the labels of a memory or a head (`of`: "head") in `box`, and their names as tags in `named`; `written` is called
 * after a label was saved or withdrawn.
 */
export function labels(box, named, one, written) {
  if (!names.indexed()) return fill(box, h("p.faint", "Labels are stored in an index, and none is open."));
  const { layer, index, of = "memory" } = one;
  const all = (name) =>
    of === "head" ? { screen: "search", query: `name:"${name}"` } : { screen: "search", path: ["concept", name] };
  const list = h("div.stack");
  const relabelled = async () => {
    await reload().catch(api.fail);
    written?.();
    labels(box, named, one, written);
  };
  const form = labelForm({ layer, index, kind: of }, relabelled);
  const withdraw = (row) => names.withdraw([row.id], form.author() || "someone").then(relabelled);
  const draw = async () => {
    const found = (await api.get("/labels", { layer, index, of }, { channel: "labels", fresh: true })).rows;
    const rows = found.filter((row) => row.kind !== "random value");
    const unique = [...new Set(rows.map((row) => row.label))];
    fill(named, [unique.map((name) => button(name, () => go(all(name)), "tag", { title: "All of this name" }))]);
    fill(list, [rows.map((row) => line(row, withdraw))]);
  };
  // When another tab writes labels, the form is not drawn again, so that what is typed in it stays.
  const elsewhere = () => (list.isConnected ? draw().catch(api.fail) : removeEventListener("labels", elsewhere));
  addEventListener("labels", elsewhere);
  return pane(box, async () => {
    await draw();
    fill(box, [list, form.el]);
  });
}

function line(row, withdraw) {
  const { tags, confidence, verdict, note } = row.notes;
  const sure = confidence && `confidence ${confidence} of 5`;
  const about = [row.author || "someone", row.made.slice(0, 10), sure, verdict, note];
  return h("p.row", [
    h("b", row.label),
    tags?.map((t) => h("span.tag", t)),
    h("span.faint", about.filter(Boolean).join(", ")),
    button("withdraw", () => withdraw(row), "quiet"),
  ]);
}

/** Make a form for a new label of a memory or head; a label that could not be stored stays in the form. */
function labelForm(one, stored) {
  const save = () => {
    const missing = [label, who].find((input) => !input.value.trim());
    if (missing) return missing.focus();
    const words = tags.value.split(",").map((text) => text.trim());
    const body = { ...one, label: label.value, author: who.value, note: note.value, tags: words.filter(Boolean) };
    if (sure.value) body.confidence = Number(sure.value);
    if (verdict.value) body.verdict = verdict.value;
    return api.send("/labels", body).then(stored, api.fail);
  };
  const label = textBox("Name", { placeholder: "a name for it", onenter: save });
  const who = names.authorBox();
  const numbers = [1, 2, 3, 4, 5].map((n) => [n, `${n} of 5`]);
  const sure = selectBox("Confidence", [["", "confidence"], ...numbers], null);
  const verdicts = ["", "clear", "mixed", "unclear"].map((v) => [v, v || "verdict"]);
  const verdict = selectBox("Verdict", verdicts, null);
  const tags = textBox("Tags", { placeholder: "tags, with commas" });
  const note = textBox("Note", { placeholder: "a note" });
  const el = h("div.row", label, who, sure, verdict, tags, note, button("Save", save, "btn"));
  return { el, author: () => who.value };
}
