/** The panes next to the map: the selected memory or memories, and the best described ones. */
import { button, fill, fixed, grouped, h, many, num } from "../dom.js";
import { token } from "../islands/tokens.js";
import * as names from "../names.js";
import { link, table, toks } from "../parts.js";
import { go, idOf, memoryPath, parseId, state, turn } from "../state.js";
import * as tray from "../tray.js";

/** How many memories of a selection are listed at most, and how many can be switched off at once. */
const LISTED = 60;
const SWITCHED = 200;

/** A density in words; the map stores one digit of it. */
const rounded = (density) => (density ? `about ${Number((100 * density).toPrecision(1))} %` : "none");

/** Functions that describe a point of the atlas by its index. */
export function pointsOf(atlas) {
  const one = (i) => ({ layer: atlas.layer[i], index: atlas.index[i] });
  return {
    one,
    id: (i) => idOf(one(i)),
    top: (i, n = 4) => atlas.top[i].slice(0, n).map((id) => [token(atlas.tokens[id]), " "]),
    density: (i) => (atlas.density ? `active on ${rounded(atlas.density[i])} of tokens` : ""),
    best: (i) => atlas.best.find((b) => b.point === i),
  };
}

/** Describe the point under the pointer. */
export function hover({ points, pop, canvas }, i, where) {
  pop.hidden = !(i >= 0);
  if (pop.hidden) return;
  const described = points.best(i)?.description;
  fill(pop, [
    h("b", points.id(i), " ", names.at(points.id(i)) ?? ""),
    h("div", points.top(i)),
    described && h("div.soft", described),
    h("div.faint", points.density(i)),
  ]);
  pop.style.left = `${Math.min(where[0] + 14, canvas.clientWidth - 190)}px`;
  pop.style.top = `${where[1] + 14}px`;
}

/** Show the selected memory; else those selected by dragging or by a search; else a hint. */
export function drawPanel(t) {
  const chosen = t.at.get(state().memory);
  if (chosen !== undefined) return drawOne(t, chosen);
  const list = t.brushed.length ? t.brushed : t.matched ? [...t.matched] : [];
  if (list.length) return drawSeveral(t, list);
  const hint = parseId(state().memory)
    ? h("p.note", `${state().memory} is not on the map, which shows evenly spaced values.`)
    : h("p.faint", "Click a point for its memory, or select several by dragging.");
  return fill(t.panel, hint);
}

const chooser = ({ points }, i) => button(points.id(i), () => turn({ memory: points.id(i) }), "quiet tok");

function drawSeveral(t, list) {
  const { atlas, points } = t;
  const shared = new Map();
  for (const i of list) for (const id of atlas.top[i]) shared.set(id, (shared.get(id) || 0) + 1);
  const common = [...shared].filter(([, n]) => n > 1).sort((a, b) => b[1] - a[1]);
  const row = (i) => [
    h("span", chooser(t, i), " ", names.at(points.id(i)) ?? ""),
    atlas.density ? rounded(atlas.density[i]) : "",
    points.top(i),
  ];
  const counted = ([id, n]) => [token(atlas.tokens[id]), h("small.faint", ` ${n} `)];
  const caption = list.length > LISTED ? `the first ${LISTED}` : "";
  fill(t.panel, [
    h("p", { role: "status" }, h("b", many(list.length, "memory", "memories"))),
    common.length > 0 && h("p", h("span.faint", "Shared tokens "), common.slice(0, 8).map(counted)),
    list.length <= SWITCHED
      ? h("div", [button("Switch all off", () => tray.addAll(list.map(points.one), "scale", 0), "btn small")])
      : h("p.faint", `Up to ${SWITCHED} can be switched off at once.`),
    table(["memory", "active on", "top tokens"], list.slice(0, LISTED).map(row), caption),
  ]);
}

/** The nearest points of the same island. */
function nearest({ atlas: { cluster, x, y } }, i) {
  const away = (j) => (x[j] - x[i]) ** 2 + (y[j] - y[i]) ** 2;
  const rest = cluster.flatMap((c, j) => (c === cluster[i] && j !== i ? [j] : []));
  return rest.sort((a, b) => away(a) - away(b)).slice(0, 6);
}

function drawOne(t, i) {
  const { atlas, points } = t;
  const one = points.one(i);
  const described = points.best(i);
  const island = atlas.islands[atlas.cluster[i]];
  const linked = link(one);
  const promoted = h("p", points.top(i));
  const draw = (found) => fill(promoted, toks(found.promoted.map((one) => one.token)));
  t.api.get(memoryPath(one), { top: 8 }, { channel: "atlas-one" }).then(draw, t.api.fail);
  fill(t.panel, [
    // The description has a line of its own.
    h("h3", described ? linked.slice(0, names.isLabelled(one) ? 2 : 1) : linked),
    described && descriptionOf(described, points.id(i)),
    promoted,
    h("p.faint", [`layer ${one.layer}`, atlas.kinds[atlas.kind[i]], points.density(i)].filter(Boolean).join(" · ")),
    h("div.row", [
      button("Open its card", () => go({ screen: "memory", compared: "" }), "btn main small"),
      button("Switch off", () => tray.off(one), "btn small"),
      button("Clear selection", () => (turn({ memory: "" }), t.over.hide()), "quiet"),
    ]),
    h("p", [h("span.faint", `Island of ${grouped(island.size)}: `), toks(island.tokens, 99)]),
    h("h3", "Nearest on the map"),
    h("ul.stack.tight", [nearest(t, i).map((j) => h("li", chooser(t, j), " ", points.top(j, 3)))]),
  ]);
}

/** List the memories with the best tested descriptions, where the atlas has no gallery. */
function drawDescribed(best, at, show) {
  const ids = names.describedIds();
  const build = [h("code", "unembed atlas build"), " describes and tests them."];
  if (!ids.length) return fill(best, h("p.faint", "No memory of this model is described. ", build));
  const line = (id) => {
    const point = at.get(id.replace("-", ""));
    const text = [h("b", id), " ", names.at(id)];
    return point === undefined ? link(parseId(id)) : button(text, () => show({ point }), "quiet");
  };
  const about = `${grouped(ids.length)} tested descriptions, the best 30: where the memory fires, and what it raises.`;
  return fill(best, h("p.faint", about), h("ol.best", [ids.slice(0, 30).map((id) => h("li", line(id)))]));
}

const descriptionOf = (one, id) =>
  h("p", [
    `${one.name === id ? "" : `${one.name}: `}${one.description}`,
    h("span.faint", ` best memory ${one.rank}${truthOf(one)}`),
  ]);

/** How the value's token scores correlate with what adding the value does, and the same for other values, if measured. */
const truthOf = ({ truth, truth_control: control }) =>
  truth === null
    ? ""
    : `, scores and effect correlate: r ${fixed(truth, 2)} (other values: below ${fixed(control, 2)})`;

/** The same in a line of a list. */
const shortTruth = ({ truth }) => truth !== null && h("span.faint", ` r ${fixed(truth, 2)}`);
const TRUTH =
  " r: correlation, over all tokens, of the value's scores with what adding the value does to the prediction.";

/** List the gallery; a click shows a memory on the map. */
export function drawBest({ atlas, points, best, map, at }) {
  const show = ({ point: i }) => {
    turn({ memory: points.id(i) });
    map.look({ x: atlas.x[i], y: atlas.y[i], zoom: Math.max(4, map.view().zoom) });
  };
  if (!atlas.best.length) return drawDescribed(best, at, show);
  const line = (b) =>
    button([h("b", b.name), " ", b.description, shortTruth(b)], () => show(b), "quiet", {
      title: `score ${num(b.score)}${truthOf(b)}`,
    });
  const different = atlas.best.filter(({ listed }) => listed);
  return fill(best, [
    h("p.faint", [
      "From the gallery, different ones first, as ",
      h("code", "unembed memories"),
      ` lists them. ${atlas.best_lens}`,
      different.some(({ truth }) => truth !== null) && TRUTH,
    ]),
    h("ol.best", [different.slice(0, 30).map((b) => h("li", line(b)))]),
  ]);
}
