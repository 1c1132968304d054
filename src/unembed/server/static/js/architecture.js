/**
 * A small diagram of the model: embedding, mixer (such as attention) and FFN of each layer, unembedding. It shows where
 * the selected part is, and what each part adds to the logits in question.
 */
import { fill, fixed, h, places, roving, sumOf } from "./dom.js";
import { asText } from "./question.js";
import { turn } from "./state.js";

/** A layer's parts, its mixer and its FFN if it has both: kind, short name, full name, and the point after it.
 * @type {(model: any, layer: number) => [string, string, string, string][]}
 */
function partsOf(model, layer) {
  const mixer = model.mixers[layer];
  const short = mixer === "attention" ? "Attention" : "Mixer";
  const parts = [];
  if (mixer) parts.push(["mixer", short, mixer === "attention" ? short : mixer, model.ffns[layer] ? "mid" : "post"]);
  if (model.ffns[layer]) parts.push(["ffn", "FFN", "FFN", "post"]);
  return parts;
}

/** What the labels of an attribution's rows begin with, by kind of part. */
const ROWS = { mixer: /^(attention|mixer)\b/, ffn: /^ffn\b/ };

/** One of six shades for a contribution: blue where it promotes the target, orange where it suppresses it. */
const shade = (x, most) => {
  const q = Math.ceil((6 * Math.abs(x)) / most);
  return q ? `${x < 0 ? "w" : "c"}${Math.min(6, q)}` : "";
};

/**
 * Draw the diagram in `el`. `at`: the selected part, {layer, part}. With a `view`, each part shows its contribution to
 * the question, and a click selects it.
 */
export function architecture(el, /** @type {any} */ { model, at = null, view = null }) {
  const rows = view?.attributions[0].rows ?? [];
  const sum = (of) => sumOf(rows.filter(of), (row) => row.contribution);
  const added = (n, part) => sum((row) => row.layer === n && ROWS[part].test(row.label));
  const start = sum((row) => row.layer === null);
  const parts = Array.from({ length: model.n_layers }, (_, n) => partsOf(model, n));
  const all = parts.map((of, n) => of.map(([part]) => added(n, part)));
  const numbers = [...all.flat(), start];
  const dense = model.n_layers > 14;
  const scale = { view, at, dense, digits: places(numbers), most: Math.max(...numbers.map(Math.abs), 1e-9) };
  const block = (xs, n) =>
    h("div.block", [
      parts[n].map((part, i) => box(n, part, xs[i], scale)),
      h("span.faint", dense && (!view || n % 2) ? "\u00a0" : String(n)),
    ]);
  const cls = `architecture${dense ? " dense" : ""}${view ? "" : " small"}`;
  const total = () => `= ${fixed(view.attributions[0].total, scale.digits)}`;
  const embedding = { title: "token and position embeddings, and the bias of the final norm" };
  const hadFocus = el.contains(document.activeElement);
  const diagram = h("div", { class: cls, role: "group", "aria-label": "Where in the model" }, [
    h("div.end", embedding, dense ? "Emb" : "Embedding", number(start, scale)),
    all.map(block),
    h("div.end", dense ? "Unemb" : "Unembedding", view && !dense && h("small", total())),
  ]);
  fill(el, diagram);
  if (view) roving(diagram, () => Math.max(...parts.map((of) => of.length))); // one layer to the left or right
  if (hadFocus) /** @type {HTMLElement} */ (el.querySelector(".on"))?.focus();
  // In a narrow window the blocks scroll in their own box: bring the selected one into view.
  const chosen = innerWidth < 640 && /** @type {HTMLElement | null} */ (el.querySelector(".on"));
  if (chosen) el.firstChild.scrollLeft = chosen.offsetLeft - el.clientWidth / 2;
}

/** Write a contribution, with a shorter form that a narrow window shows instead. */
function number(x, { view, dense, digits }) {
  const short = fixed(x, Math.max(0, digits - 1), true).replace(/\b0\./, ".");
  return view && !dense && h("small", { data: { short } }, fixed(x, digits, true));
}

function box(n, [part, name, full, stage], x, scale) {
  const { view, at, dense, digits, most } = scale;
  const here = at !== null && at.layer === n && at.part === part;
  const label = `Layer ${n} ${full}${view ? ` adds ${fixed(x, digits, true)} to ${asText(view)}` : ""}`;
  const props = {
    class: `part ${view ? shade(x, most) : ""}${here ? " on" : ""}`,
    title: label,
    "aria-label": label,
    "aria-current": here && "true",
  };
  const text = [h("span.what", { data: { short: name[0] } }, dense ? name[0] : name), number(x, scale)];
  const onclick = () => turn({ layer: String(n), stage, layers: "" });
  return view ? h("button", { type: "button", onclick, ...props }, text) : h("span", { role: "img", ...props }, text);
}
