/** Passages of a corpus, each up to the token of interest; one switch sets the length shown for all of them. */
import { button, fill, h, num, percent, segmented } from "./dom.js";
import { token, visible } from "./islands/tokens.js";
import { go } from "./state.js";

const LENGTHS = [
  ["8", "Short"],
  ["24", "Medium"],
  ["400", "Full"],
];
let length = "24";

/** The lists on the page; all are redrawn when the length changes. */
const drawn = new Set();
function dropDetached() {
  for (const box of drawn) if (!box.isConnected) drawn.delete(box);
}
export const lengths = () =>
  segmented("Length", LENGTHS, length, (value) => {
    length = value;
    dropDetached();
    for (const box of drawn) box.draw();
  });

/** A coefficient as a shade: blue positive, orange negative. */
export function shade(m, most) {
  const q = Math.round((6 * Math.abs(m)) / most);
  return q ? `${m < 0 ? "w" : "c"}${Math.min(6, q)}` : "";
}

/**
 * The first few contexts, and a button for the others. Tokens are shaded by `coefficients`, named by `quantity`. A
 * `source`, the token that the last one attends to, is marked and named too.
 */
export function contexts(box, rows, first, quantity = "coefficient") {
  const most = Math.max(...rows.map((r) => Math.abs(r.coefficient)), 1e-9);
  let shown = first;
  box.draw = () =>
    fill(box, [
      rows.slice(0, shown).map((r) => {
        const last = r.tokens.length - 1;
        const from = Math.max(0, Math.min(last - Number(length), (r.source ?? last) - 2));
        const title = (i) => (i in r.coefficients ? `${quantity} ${r.coefficients[i].toPrecision(4)}` : undefined);
        return h("div.trigger", [
          h("span.value", { title: `document ${r.document}, token ${r.position}` }, num(r.coefficient)),
          h("div.context", { dir: "auto" }, [
            from > 0 && "… ",
            r.tokens.slice(from).map((t, k) =>
              h(
                from + k === last ? "mark" : "span",
                {
                  class:
                    from + k === last
                      ? ""
                      : from + k === r.source
                        ? "from"
                        : shade(r.coefficients[from + k] || 0, most),
                  title: title(from + k),
                },
                [t.replace(/\s+/g, " ")],
              ),
            ),
            h("span.next", { title: "the token that follows in the corpus" }, ` ${visible(r.next_token || "")}`),
            h("small.faint", [
              ` document ${r.document}`,
              r.weight !== undefined && [", reads ", token(r.tokens[r.source]), ` (${percent(r.weight)})`],
            ]),
          ]),
          r.prompt !== null &&
            button(
              "use",
              () =>
                go({
                  screen: "trace",
                  prompt: r.prompt || r.tokens.join("").trimStart(),
                  position: r.prompt ? String(r.position) : "",
                  token: "",
                  layer: "",
                }),
              { class: "quiet", title: "Use the whole passage as prompt", "aria-label": "Use this text as the prompt" },
            ),
        ]);
      }),
      shown < rows.length && button(`Show all ${rows.length}`, () => ((shown = 99), box.draw()), { class: "quiet" }),
    ]);
  dropDetached();
  drawn.add(box);
  box.draw();
}
