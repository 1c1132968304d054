/** Writers of a layer or of the whole model as a table, one line each: memories (FFN neurons), heads, or both. */
import * as api from "./api.js";
import { append, button, fill, fixed, h, percent, places } from "./dom.js";
import { visible } from "./islands/tokens.js";
import { indexed, nameOf } from "./names.js";
import { link, pane, toks } from "./parts.js";
import { asText } from "./question.js";
import { idOf } from "./state.js";
import * as tray from "./tray.js";

/** Ways to rank the lists: the API's name, its label, and its definition. */
export const ORDERS = {
  effect: ["Effect", "|effect|: what the writer adds to the question's logits, with the norm scale of this run"],
  deviation: [
    "Beyond the mean",
    "|effect − effect of the mean coefficient in the corpus|: what mean ablation takes away",
  ],
  size: ["Size", "|coefficient| × value norm, or the norm of what a head adds"],
  coefficient: ["Coefficient", "|coefficient|"],
};

export const isHead = (u) => u.coefficient === undefined;
/** The number by which a row is ranked. A head has no coefficient and no mean. */
const RANKED = {
  effect: (u) => Math.abs(u.score),
  deviation: (u) => Math.abs(u.deviation ?? u.score),
  size: (u) => u.contribution ?? u.norm,
  coefficient: (u) => Math.abs(u.coefficient ?? 0),
};
export const ranked = (rows, order) => [...rows].sort((a, b) => RANKED[order](b) - RANKED[order](a));

/**
 * A table of writers in the given order, the always-on ones folded below it. `view` has the question of the effects;
 * `after`: more lines, [text, effect].
 */
export function updatesTable(el, rows, view, { order = "effect", after = [] } = {}) {
  const listed = rows.filter((u) => !u.always_on);
  const always = rows.filter((u) => u.always_on);
  const effect = (u) => (order === "deviation" ? (u.deviation ?? u.score) : u.score);
  const digits = {
    effect: places(rows.map(effect)),
    coefficient: places(rows.filter((u) => !isHead(u)).map((u) => u.coefficient)),
  };
  const columns = [
    ["Writer", ""],
    ["Coefficient", "n wide-only", "after the activation function; in gated layers gate × up"],
    ["Share", "n wide-only", "|coefficient| × value norm over the sum of the layer's; of a head, its norm"],
    [
      order === "deviation" ? "Beyond the mean" : "Effect",
      "n",
      `on ${asText(view)}, in logits${order === "deviation" ? ", less the effect of the mean coefficient" : ""}`,
    ],
    ["", "meter-cell"],
    [
      "Promotes",
      "",
      "its name where it has one, and the tokens that it promotes: with a negative coefficient, the tokens at the value's " +
        "other end",
    ],
    [h("span.hidden", "Edit"), ""],
  ];
  const line = (largest) => (u) => {
    const head = isHead(u);
    const e = effect(u);
    const id = idOf(u, head ? "head" : "memory");
    const name = nameOf(u, head ? "head" : "memory");
    const tokens = u.coefficient < 0 ? u.bottom_tokens : u.top_tokens;
    const row = h("tr.sub-update", [
      h("td.writer", link(u, head ? "head" : "memory")[0]),
      h("td.n.wide-only", head ? "" : fixed(u.coefficient, digits.coefficient)),
      h("td.n.wide-only", percent(u.share)),
      h("td.n.effect", fixed(e, digits.effect, true)),
      h("td.meter-cell", { "aria-hidden": "true" }, [
        h("span.meter", [
          h("span", {
            class: e < 0 ? "bar minus" : "bar plus",
            style: { width: `${Math.max(1, (Math.abs(e) / largest) * 50)}%`, [e < 0 ? "right" : "left"]: "50%" },
          }),
        ]),
      ]),
      h("td.toks", name && h("span.name", { dir: "auto", title: name }, name), toks(tokens, 8)),
      h("td.acts", [
        !head &&
          button("⋯", (event) => opened(event.currentTarget, row, u), {
            class: "quiet",
            title: "Tokens and triggers",
            "aria-label": `Tokens and triggers of ${id}`,
            "aria-expanded": "false",
          }),
        button("+", () => tray.off(u, head ? "head" : undefined), {
          class: "quiet",
          title: `Add to the edits: switch this ${head ? "head" : "memory"} off`,
          "aria-label": `Switch ${id} off`,
        }),
      ]),
    ]);
    return row;
  };
  const table = (list) =>
    h(
      "table.updates",
      { style: { "--longest": Math.max(6, ...list.map((u) => idOf(u, isHead(u) ? "head" : "memory").length)) } },
      [
        h("thead", [
          h("tr", [columns.map(([text, cls, title]) => h("th", { scope: "col", class: cls, title }, text))]),
        ]),
        h("tbody", list.map(line(Math.max(...list.map((u) => Math.abs(effect(u))), 1e-9)))),
      ],
    );
  fill(el, [
    h("div.updates-box", table(listed)),
    after.map(([text, value]) => h("p.faint", text, value === null ? "" : `: ${fixed(value, digits.effect, true)}`)),
    always.length > 0 &&
      h("details.always-on", [
        h("summary", [
          h("span.tag", "always on"),
          ` ${always.length} ${always.length === 1 ? "memory fires" : "memories fire"} on nearly every token: ${fixed(
            always.reduce((sum, u) => sum + effect(u), 0),
            digits.effect,
            true,
          )}`,
        ]),
        h("div.updates-box", table(always)),
      ]),
  ]);
}

/** A short card of a memory, opened in the row below its own. */
function opened(control, row, u) {
  const open = control.getAttribute("aria-expanded") === "true";
  control.setAttribute("aria-expanded", String(!open));
  if (open) return row.nextSibling.remove();
  const body = h("div.stack");
  // A narrow table hides some columns, and a cell that spans hidden ones would widen it.
  const columns = [...row.cells].filter((cell) => cell.offsetParent).length;
  row.after(h("tr.more", h("td", { colspan: columns }, body)));
  return pane(body, async () => {
    const name = nameOf(u);
    fill(body, [
      name && h("p", h("b", name)),
      [
        ["promotes", u.top_tokens.slice(0, 10)],
        ["suppresses", u.bottom_tokens.slice(0, 10)],
      ].map(([end, list]) => h("p", h("span.soft", `${end} `), toks(list, 10))),
    ]);
    if (!indexed()) return;
    const { rows } = await api.get(
      `/memories/${u.layer}/${u.index}/triggers`,
      { top: 2, context: 16 },
      { channel: `more ${u.layer}.${u.index}` },
    );
    append(body, [
      rows.map((found) =>
        h("p", { dir: "auto" }, [
          h("span.faint", `${fixed(found.coefficient, 2)} `),
          found.prefix.replace(/\s+/g, " "),
          h("mark", found.token),
        ]),
      ),
    ]);
  });
}

/** The same rows for a file. */
export const plainRows = (rows) =>
  rows.map((u) => [
    idOf(u, isHead(u) ? "head" : "memory"),
    u.coefficient ?? "",
    u.norm,
    u.share,
    u.score,
    u.deviation ?? "",
    u.top_tokens.slice(0, 6).map(visible).join(" "),
  ]);
export const PLAIN_HEAD = ["writer", "coefficient", "norm", "share", "effect", "beyond the mean", "promotes"];
