/** A table of memories (FFN neurons) and heads with what each adds to the logits in question, one line each. */
import * as api from "./api.js";
import { append, bareTable, button, bySize, fill, fixed, h, many, percent, places, sumOf } from "./dom.js";
import { token, visible } from "./islands/tokens.js";
import { indexed, nameOf } from "./names.js";
import { link, pane, toks } from "./parts.js";
import { asText } from "./question.js";
import { idOf, memoryPath } from "./state.js";
import * as tray from "./tray.js";

/** The ways to rank them: by the API's name of each, its label and its definition. */
export const ORDERS = {
  effect: ["Effect", "|effect|: what the writer adds to the question's logits, with the norm scale of this run"],
  deviation: [
    "Beyond the mean",
    "|effect − effect of the mean coefficient in the corpus|: what mean ablation takes away",
  ],
  size: ["Size", "|coefficient| × value norm, or the norm of what a head adds"],
  coefficient: ["Coefficient", "|coefficient|"],
};

export const kindOf = (u) => (u.coefficient === undefined ? "head" : "memory");
const isHead = (u) => kindOf(u) === "head";
const id = (u) => idOf(u, kindOf(u));

/** The number by which each way ranks a row. A head has no coefficient and no mean. */
const RANKED = {
  effect: (u) => Math.abs(u.score),
  deviation: (u) => Math.abs(u.deviation ?? u.score),
  size: (u) => u.contribution ?? u.norm,
  coefficient: (u) => Math.abs(u.coefficient ?? 0),
};
export const ranked = (rows, order) => [...rows].sort((a, b) => RANKED[order](b) - RANKED[order](a));

/**
 * The table in the order of `rows`, with the memories that are always on folded below it. `view`: the answer of the
 * API, which names the question; `after`: lines below the table, [text, effect or null].
 */
export function updatesTable(rows, view, /** @type {any} */ { order = "effect", after = [] } = {}) {
  const effect = (u) => (order === "deviation" ? (u.deviation ?? u.score) : u.score);
  const digits = places(rows.map(effect));
  const coefficients = places(rows.filter((u) => !isHead(u)).map((u) => u.coefficient));
  const isMeasured = rows.some((u) => (u.without ?? null) !== null);
  const table = (list) => {
    const largest = Math.max(...list.map((u) => Math.abs(effect(u))), 1e-9);
    const lines = list.map((u) => line(u, effect(u), largest, { digits, coefficients, isMeasured }));
    const head = headings(order, view, { isMeasured, isOfHeads: list.every(isHead) }).map(([text, cls, title]) =>
      h("th", { scope: "col", class: cls, title }, text),
    );
    const made = bareTable("table.updates", head, lines);
    made.classList.toggle("of-heads", isMeasured && list.every(isHead));
    made.style.setProperty("--longest", String(Math.max(6, ...list.map((u) => id(u).length))));
    return h("div.updates-box", made);
  };
  const always = rows.filter((u) => u.always_on);
  const fires = () => {
    const sum = fixed(sumOf(always, effect), digits, true);
    return ` ${many(always.length, "memory fires", "memories fire")} on nearly every token: ${sum}`;
  };
  return [
    table(rows.filter((u) => !u.always_on)),
    after.map(([text, value]) => h("p.faint", text, value === null ? "" : `: ${fixed(value, digits, true)}`)),
    always.length > 0 && h("details.always-on", h("summary", h("span.tag", "always on"), fires()), table(always)),
  ];
}

/** Each column's name, class and title. */
function headings(order, view, { isMeasured, isOfHeads }) {
  const deviates = order === "deviation";
  const on = `on ${asText(view)}, in logits${deviates ? ", less the effect of the mean coefficient" : ""}`;
  const promoted =
    "its name where it has one, and the tokens that it promotes at this coefficient; where its effect is negative, those " +
    "that it suppresses; as a lens reads its value vector, not measured";
  const [target] = asText(view).split(" over ");
  return [
    ["Writer", ""],
    isMeasured && isOfHeads
      ? ["Reads", "n wide-only", "the token from which most of its effect comes, and the head's attention to it"]
      : ["Coefficient", "n wide-only", "after the activation function; in gated layers gate × up"],
    isMeasured
      ? ["Without", "n wide-only", `the probability of ${target} when this writer alone writes nothing here`]
      : ["Share", "n wide-only", "|coefficient| × value norm over the sum of the layer's; of a head, its norm"],
    [deviates ? "Beyond the mean" : "Effect", "n", on],
    ["", "meter-cell"],
    isMeasured ? ["Tokens", "", MOVED] : ["Promotes (lens)", "", promoted],
    [h("span.hidden", "Edit"), ""],
  ];
}

/** The title of the column of tokens where the model was run without some writers, one at a time. */
const MOVED =
  "its name where it has one; raises, lowers: the likely tokens that it moves most, measured without it; promotes, " +
  "suppresses: what its value vector reads as, not measured";

/** The tokens that a writer raises or lowers, as measured; else those that its value promotes or suppresses. */
function moves(u, isMeasured) {
  const { raised = [], lowered = [] } = u.moved ?? {};
  const down = u.score < 0;
  if (raised.length || lowered.length) {
    const [verb, list] = (down ? lowered.length : !raised.length) ? ["lowers ", lowered] : ["raises ", raised];
    return [h("small", verb), toks(list, 8)];
  }
  if (!u.top_tokens) return null;
  const verb = down ? "suppresses " : isMeasured && "promotes ";
  return [verb && h("small.faint", verb), toks(u.coefficient < 0 === down ? u.top_tokens : u.bottom_tokens, 8)];
}

/** The token from which most of a head's effect comes, and the head's attention to it. */
function reads({ sources = [] }) {
  const [most] = bySize(sources, (source) => source.effect);
  return most ? [token(most.token), ` ${percent(most.weight)}`] : "";
}

/** The row of a writer whose effect is `e`. */
function line(u, e, largest, { digits, coefficients, isMeasured }) {
  const kind = kindOf(u);
  const name = nameOf(u, kind);
  const width = `${Math.max(1, (Math.abs(e) / largest) * 50)}%`;
  const bar = h(e < 0 ? "span.bar.minus" : "span.bar.plus", { style: { width, [e < 0 ? "right" : "left"]: "50%" } });
  const row = h("tr.sub-update", [
    h("td.writer", link(u, kind)[0]),
    h("td.n.wide-only", kind === "head" ? reads(u) : fixed(u.coefficient, coefficients)),
    h("td.n.wide-only", isMeasured ? (u.without === null ? "" : percent(u.without)) : percent(u.share)),
    h("td.n.effect", fixed(e, digits, true)),
    h("td.meter-cell", { "aria-hidden": "true" }, h("span.meter", bar)),
    h("td.toks", [name && h("span.name", { dir: "auto", title: name }, name), moves(u, isMeasured)]),
    h("td.acts", [
      kind === "memory" &&
        button("⋯", (event) => opened(event.currentTarget, row, u), "quiet", {
          title: "Tokens and triggers",
          "aria-label": `Tokens and triggers of ${id(u)}`,
          "aria-expanded": "false",
        }),
      button("+", () => tray.off(u, kind === "head" ? kind : undefined), "quiet", {
        title: `Add to the edits: switch this ${kind} off`,
        "aria-label": `Switch ${id(u)} off`,
      }),
    ]),
  ]);
  return row;
}

/** Open a short card of a memory in a row below its own, or close it. */
function opened(control, row, u) {
  const open = control.getAttribute("aria-expanded") === "true";
  control.setAttribute("aria-expanded", String(!open));
  if (open) return row.nextSibling.remove();
  const body = h("div.stack");
  // A narrow table hides some columns, and a cell that spans hidden ones would widen it.
  const columns = [...row.cells].filter((one) => one.offsetParent).length;
  row.after(h("tr.more", h("td", { colspan: columns }, body)));
  return pane(body, async () => {
    const name = nameOf(u);
    const { raised: raises, lowered: lowers } = u.moved ?? {};
    const ends = { raises, lowers, promotes: u.top_tokens, suppresses: u.bottom_tokens };
    const filled = Object.entries(ends).filter(([, list]) => list?.length);
    const line = ([end, list]) => h("p", h("span.soft", `${end} `), toks(list, 10));
    fill(body, name && h("p", h("b", name)), filled.map(line));
    if (!indexed()) return;
    const query = { top: 2, context: 16 };
    const found = await api.get(`${memoryPath(u)}/triggers`, query, { channel: `more ${u.layer}.${u.index}` });
    const trigger = ({ coefficient, prefix, token }) =>
      h("p", { dir: "auto" }, [
        h("span.faint", `${fixed(coefficient, 2)} `),
        prefix.replace(/\s+/g, " "),
        h("mark", token),
      ]);
    append(body, found.rows.map(trigger));
  });
}

/** The rows of a file. */
export function plainRows(rows) {
  const promoted = (u) => u.top_tokens.slice(0, 6).map(visible).join(" ");
  return rows.map((u) => [id(u), u.coefficient ?? "", u.norm, u.share, u.score, u.deviation ?? "", promoted(u)]);
}
export const PLAIN_HEAD = ["writer", "coefficient", "norm", "share", "effect", "beyond the mean", "promotes"];
