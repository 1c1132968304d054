/** The runs since the server started, newest first: restore one, or compare two. */
import { ending, fill, h } from "../dom.js";
import { card, pane } from "../parts.js";
import * as tray from "../tray.js";

const made = (r) => (r.edits.length ? tray.editsInWords(r.edits) : "no edits");

/** `{el, draw}` */
export function runsPane(api, restore) {
  const history = h("div");
  const compared = h("div");
  const picked = new Set();

  const draw = () =>
    pane(history, async () => {
      const found = (await api.get("/runs", {}, { fresh: true })).runs.reverse();
      fill(history, [
        found.length
          ? h("ul.runs", [
              found.slice(0, 12).map((r) =>
                h("li", [
                  h("input", {
                    type: "checkbox",
                    checked: picked.has(r.run),
                    "aria-label": `Compare run ${r.run}`,
                    onchange: () => pick(r.run),
                  }),
                  h("button", { type: "button", onclick: () => restore(r) }, [
                    h("b", `${r.run} `),
                    h("span", [
                      h("span.faint", `${ending(r.prompt, 34)} `),
                      made(r),
                      h("span.faint", r.diverges_at === null ? "" : `, diverges at ${r.diverges_at + 1}`),
                    ]),
                  ]),
                ]),
              ),
            ])
          : h("p.faint", "Every run stays here with its edits, until the server stops."),
      ]);
      const two = found.filter((r) => picked.has(r.run)).reverse();
      if (two.length < 2) return fill(compared);
      const [a, b] = two.map((r) => r.texts.edit ?? r.texts.base);
      let same = 0;
      while (same < a.length && a[same] === b[same]) same++;
      fill(compared, [
        h("div.pair", [
          two.map((r, i) =>
            h("div", [
              h("h3", `Run ${r.run}: ${made(r)}`),
              h("div.text", [
                h("span.given", r.prompt),
                h("span.common", a.slice(0, same)),
                h("span.diverges", [a, b][i].slice(same)),
              ]),
            ]),
          ),
        ]),
        h("p.faint", same === a.length && same === b.length ? "The same text." : `The same for ${same} characters.`),
      ]);
    });

  /** Two runs at most: a third replaces the first. */
  function pick(run) {
    if (!picked.delete(run)) picked.add(run);
    if (picked.size > 2) picked.delete([...picked][0]);
    draw();
  }

  return { el: card("Runs", h("span.faint", "tick two to compare"), history, compared), draw };
}
