/** A memory's nearest neighbours, its cluster, and the WordNet categories of its tokens. */
import { button, fill, grouped, h, num } from "../dom.js";
import { token } from "../islands/tokens.js";
import { about, answered, link, loading, pane, toks } from "../parts.js";
import { idOf, memoryPath } from "../state.js";

/** Show the six values with the most similar directions. */
export function neighbours(box, { api, model }, memory) {
  if (!model.can.index) return fill(box, h("p.faint", "Neighbours are found with an index, and none is open."));
  fill(box, loading("Comparing values", 6));
  const ask = () => api.post("/analyses/index-similar", { memory: idOf(memory), top: 6 }, { channel: "similar" });
  const head = (row) => h("div.head", link(row), h("span.faint", `cosine ${num(row.cosine)}`));
  const line = (row) => h("li", head(row), h("div.toks", toks(row.top_tokens)));
  return answered(box, ask, ({ rows }) => h("ul.near", rows.map(line)));
}

/** Show the WordNet categories that several of a memory's top tokens belong to. */
export function categories(box, { api }, memory) {
  fill(box, loading("Reading categories", 2));
  const ask = () => api.post("/analyses/concepts", { named: [idOf(memory)] }, { channel: "concepts" });
  const line = ({ kind, concept, n_tokens: n, tokens }) =>
    h("li", h("span.tag", kind), " ", h("b", concept), h("span.faint", ` ${n} of 30: `), toks(tokens));
  return answered(box, ask, ({ rows }) =>
    rows.length
      ? h("ul.stack", rows.slice(0, 8).map(line))
      : h("p.faint", "No category is shared by at least 4 of the 30 top tokens."),
  );
}

/** Show the cluster of values that a memory is in (average linkage), and its size also in `figure`. */
export const cluster = (box, figure, page, memory) =>
  pane(box, async () => {
    const { api } = page;
    const found = await api.get(`${memoryPath(memory)}/cluster`, {}, { channel: "cluster", fresh: true });
    const { size, values, n_clusters: n, coherence, shared, counted, members } = found;
    const all = `${grouped(values)} values`;
    fill(figure, size > 1 ? [`${size}`, h("small", " values")] : h("small", size ? "no other value" : "not computed"));
    const progress = ({ done = 0, of = 0 }) => fill(box, h("p.faint", `${done} of ${of || "all"} steps of clustering`));
    const compute = async () => {
      progress({}); // other long work may run first
      await api.stream("/clusters", {}, progress, { what: "Clustering values" }).catch(api.fail);
      await cluster(box, figure, page, memory);
    };
    const start = button("Compute clusters", () => pane(box, compute), "btn small");
    if (!size) return fill(box, h("p", `The ${all} of the model are not clustered yet. `, start));
    const tokens = shared.map(([t, times]) => [token(t), h("small.faint", ` ${times}  `)]);
    const member = (m) => link(m, "memory", { class: "btn small tok", title: `cosine ${num(m.cosine)}` });
    fill(box, [
      h("p", `${size} of ${all}, in one of ${n} clusters`, size > 1 && `; mean cosine ${num(coherence)}`),
      shared.length > 0 && h("p", h("span.soft", `Promoted by several of ${counted}: `), tokens),
      h("div.row", members.map(member)),
      about("cluster"),
    ]);
  });
