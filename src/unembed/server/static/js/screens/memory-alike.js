/** A memory's nearest neighbours, its cluster, and the WordNet categories of its tokens. */
import { button, fill, h, num } from "../dom.js";
import { token } from "../islands/tokens.js";
import { about, loading, memoryLink, pane, toks } from "../parts.js";

const pathOf = ({ layer, index }) => `/memories/${layer}/${index}`;

/** The six values with the most similar directions. */
export function neighbours(box, { api, model }, memory) {
  if (!model.can.index) return fill(box, h("p.faint", "Neighbours are found with an index, and none is open."));
  fill(box, loading("Comparing values", 6));
  return pane(box, async () => {
    const found = await api.get(`${pathOf(memory)}/similar`, { top: 6 }, { channel: "similar" });
    fill(box, [
      h("ul.near", [
        found.rows.map((row) =>
          h("li", [
            h("div.head", memoryLink(row), h("span.faint", `cosine ${num(row.cosine)}`)),
            h("div.toks", toks(row.top_tokens)),
          ]),
        ),
      ]),
    ]);
  });
}

/** WordNet categories that several of its top tokens belong to. */
export function categories(box, { api }, memory) {
  fill(box, loading("Reading categories", 2));
  return pane(box, async () => {
    const { rows } = await api.get(`${pathOf(memory)}/concepts`, {}, { channel: "concepts" });
    fill(box, [
      rows.length
        ? h("ul.stack", [
            rows
              .slice(0, 8)
              .map((row) =>
                h("li", [
                  h("span.tag", row.kind),
                  " ",
                  h("b", row.concept),
                  h("span.faint", ` ${row.n_tokens} of 30: `),
                  toks(row.tokens),
                ]),
              ),
          ])
        : h("p.faint", "No category is shared by at least 4 of the 30 top tokens."),
    ]);
  });
}

/**
 * The cluster of values that it is in (average linkage), its size also in `figure`; a button computes the clusters.
 */
export const cluster = (box, figure, page, memory) =>
  pane(box, async () => {
    const { api } = page;
    const found = await api.get(`${pathOf(memory)}/cluster`, {}, { channel: "cluster", fresh: true });
    const { size, values, n_clusters: n, coherence, shared, counted, members } = found;
    const all = `${values.toLocaleString("en")} values`;
    fill(figure, size > 1 ? [`${size}`, h("small", " values")] : h("small", size ? "no other value" : "not computed"));
    const compute = () =>
      pane(box, async () => {
        const showProgress = ({ done = 0, of = 0 }) =>
          fill(box, h("p.faint", `${done} of ${of || "all"} steps of clustering`));
        showProgress({}); // other long work may run first
        await api.stream("/clusters", {}, showProgress, { what: "Clustering values" }).catch(api.fail);
        await cluster(box, figure, page, memory);
      });
    if (!size)
      return fill(box, [
        h("p", [
          `The ${all} of the model are not clustered yet. `,
          button("Compute clusters", compute, { class: "btn small" }),
        ]),
      ]);
    fill(box, [
      h("p", `${size} of ${all}, in one of ${n} clusters`, size > 1 && `; mean cosine ${num(coherence)}`),
      shared.length > 0 &&
        h("p", [
          h("span.soft", `Promoted by several of ${counted}: `),
          shared.map(([t, times]) => [token(t), h("small.faint", ` ${times}  `)]),
        ]),
      h("div.row", [members.map((m) => memoryLink(m, { class: "btn small tok", title: `cosine ${num(m.cosine)}` }))]),
      about("cluster"),
    ]);
  });
