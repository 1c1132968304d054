/** The labels of a memory or a head with a form for a new one; the message of a pane that needs an index. */

import * as api from "./api.js";
import { shell } from "./code.js";
import { button, fill, h, many, num, textBox } from "./dom.js";
import * as names from "./names.js";
import { pane } from "./parts.js";
import { save } from "./sharing.js";
import { go } from "./state.js";

/** The commands that build an index of the served model, and serve it. */
function buildCommands(model) {
  const named = model.source === "wren" ? "" : ` --model ${shell(model.source)}`;
  return [`unembed index build${named} --out my-index`, `unembed serve${named} --index my-index`];
}

/** The message of a pane that needs an index: the commands that build one, with their cost. */
export async function noIndex(box, text) {
  const [model] = (await api.get("/models")).models;
  const cost = h("p.faint", model.can.text ? "Estimating its cost …" : "");
  fill(box, [
    h("div.note.stack", [
      h("p", text),
      h("p", "No index is open. Build one, then serve it:"),
      buildCommands(model).map((command) => h("code", command)),
      cost,
    ]),
  ]);
  if (!model.can.text) return;
  await pane(cost, async () => {
    const found = await api.get("/index/estimate", {}, { what: "Estimating" });
    const minutes = Math.ceil(found.seconds_busy / 60);
    fill(cost, [
      `About ${many(minutes, "minute")} and ${num(found.bytes / 1e6)} MB on disk, for the ` +
        `${found.tokens.toLocaleString("en")} tokens of the shipped corpus.`,
    ]);
  });
}

/** Save all labels as a file, one JSON object a line. */
export async function exportLabels() {
  const answer = await fetch("api/v1/annotations/export");
  save("labels.jsonl", await answer.text(), "application/x-ndjson");
}

/**
 * The labels of a memory or a head (`of`: "head") in one box, its names in another; `written` is called after a label
 * was saved or withdrawn.
 */
export function labels(box, named, { layer, index, of = "memory" }, written) {
  if (!names.indexed()) return fill(box, h("p.faint", "Labels are stored in an index, and none is open."));
  const all = (name) =>
    of === "head" ? { screen: "search", query: `name:"${name}"` } : { screen: "search", path: ["concept", name] };
  return pane(box, async () => {
    const rows = (await api.get("/labels", { layer, index, of }, { channel: "labels", fresh: true })).rows.filter(
      (row) => row.kind !== "random value",
    );
    fill(named, [
      [...new Set(rows.map((row) => row.label))].map((name) =>
        button(name, () => go(all(name)), { class: "tag", title: "All of this name" }),
      ),
    ]);
    const again = async () => {
      api.forget("/memories/search");
      await names.load().catch(api.fail);
      written?.();
      labels(box, named, { layer, index, of }, written);
    };
    const save = () => {
      const missing = [label, who].find((input) => !input.value.trim());
      if (missing) return missing.focus();
      return api
        .send("/labels", {
          layer,
          index,
          kind: of,
          label: label.value,
          author: who.value,
          note: note.value,
          tags: tags.value
            .split(",")
            .map((t) => t.trim())
            .filter(Boolean),
          ...(sure.value && { confidence: Number(sure.value) }),
          ...(verdict.value && { verdict: verdict.value }),
        })
        .then(again, api.fail); // a label that could not be stored stays in the form
    };
    const label = textBox("Name", { placeholder: "a name for it", onkeydown: (e) => e.key === "Enter" && save() });
    const who = names.authorBox();
    const sure = h("select", { "aria-label": "Confidence" }, [
      h("option", { value: "" }, "confidence"),
      [1, 2, 3, 4, 5].map((n) => h("option", { value: n }, `${n} of 5`)),
    ]);
    const verdict = h("select", { "aria-label": "Verdict" }, [
      ["", "clear", "mixed", "unclear"].map((v) => h("option", { value: v }, v || "verdict")),
    ]);
    const [tags, note] = [
      ["Tags", "tags, with commas"],
      ["Note", "a note"],
    ].map(([name, placeholder]) => textBox(name, { placeholder }));
    fill(box, [
      rows.map((row) =>
        h("p.row", [
          h("b", row.label),
          row.notes.tags?.map((t) => h("span.tag", t)),
          h("span.faint", [
            [
              row.author || "someone",
              row.made.slice(0, 10),
              row.notes.confidence && `confidence ${row.notes.confidence} of 5`,
              row.notes.verdict,
              row.notes.note,
            ]
              .filter(Boolean)
              .join(", "),
          ]),
          button("withdraw", () => names.withdraw([row.id], who.value || "someone").then(again), { class: "quiet" }),
        ]),
      ),
      h("div.row", label, who, sure, verdict, tags, note, button("Save", save, { class: "btn" })),
    ]);
  });
}
