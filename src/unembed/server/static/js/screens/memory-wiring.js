/** A memory's connections by weights alone: the parts that write to its key, and the memories that read its value. */
import { bareTable, fill, fixed, h, part } from "../dom.js";
import { nameOf } from "../names.js";
import { about, answered, link, toks } from "../parts.js";
import { memoryPath } from "../state.js";

/** A row: the other part, the strength of the connection (grey if chance is as strong), its name and tokens. */
function line(row, kind, chance) {
  const cls = Math.abs(row.strength) > chance ? "n" : "n faint";
  const strength = fixed(row.strength, 3, kind === "memory");
  const name = nameOf(row, kind);
  return [
    h("td.writer", link(row, kind)[0]),
    h("td", { class: cls, title: "grey: not stronger than chance" }, strength),
    h("td.toks", name && h("span.name", name), row.top_tokens && toks(row.top_tokens, 6)),
  ];
}

function list(title, rows, kind, chance, none) {
  const unit = h("small.faint", kind === "head" ? " norm ratio" : " cosine");
  const lines = rows.map((row) => line(row, kind, chance));
  const table = bareTable("table.wired", null, lines, h("caption.hidden", title));
  return part([title, unit], rows.length ? table : h("p.faint", `None: ${none}.`));
}

export function wiring(box, api, memory) {
  fill(box, h("p.faint", "Reading weights …"));
  const ask = () => api.get(`${memoryPath(memory)}/connections`, {}, { channel: "connections" });
  return answered(box, ask, ({ heads, writers, readers, chance_head: byHead, chance_memory: byMemory }) => [
    list("Heads that write to its key", heads, "head", byHead, "it reads the same stream as the first attention"),
    list("Memories that write to its key", writers, "memory", byMemory, "it is in the first layer"),
    list("Memories that read its value", readers, "memory", byMemory, "only the unembedding comes after it"),
    about("wiring"),
  ]);
}
