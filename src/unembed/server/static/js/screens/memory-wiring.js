/** Virtual weights of a memory: the parts that write to its key, and the memories that read its value. */
import { fill, fixed, h } from "../dom.js";
import { nameOf } from "../names.js";
import { about, link, pane, toks } from "../parts.js";

/** Fill `box` with the connections of a memory. */
export function wiring(box, api, { layer, index }) {
  fill(box, h("p.faint", "Reading weights …"));
  return pane(box, async () => {
    const found = await api.get(`/memories/${layer}/${index}/connections`, {}, { channel: "connections" });
    const list = (title, rows, kind, chance, none) =>
      h("div", [
        h("h3", title),
        rows.length
          ? h("table.wired", [
              h("caption.hidden", title),
              h("tbody", [
                rows.map((row) =>
                  h("tr", [
                    h("td.writer", link(row, kind)[0]),
                    h(
                      "td",
                      {
                        class: Math.abs(row.strength) > chance ? "n" : "n faint",
                        title: "grey: not stronger than chance",
                      },
                      [fixed(row.strength, 3, kind === "memory")],
                    ),
                    h("td.toks", [
                      nameOf(row, kind) && h("span.name", nameOf(row, kind)),
                      row.top_tokens && toks(row.top_tokens, 6),
                    ]),
                  ]),
                ),
              ]),
            ])
          : h("p.faint", none),
      ]);
    fill(box, [
      list(
        "Heads that write to its key",
        found.heads,
        "head",
        found.chance_head,
        "None: it reads the same stream as the first attention.",
      ),
      list(
        "Memories that write to its key",
        found.writers,
        "memory",
        found.chance_memory,
        "None: it is in the first layer.",
      ),
      list(
        "Memories that read its value",
        found.readers,
        "memory",
        found.chance_memory,
        "None: only the unembedding comes after it.",
      ),
      about("wiring"),
    ]);
  });
}
