/** All memories (FFN neurons) of the model on one map: values of similar direction share an island. */
import { literal } from "../code.js";
import { button, fill, h, num, percent, segmented, textBox } from "../dom.js";
import { mount } from "../islands/map.js";
import { token, visible } from "../islands/tokens.js";
import * as names from "../names.js";
import { about, card, memoryLink, noMemories, pane, table } from "../parts.js";
import { sheet } from "../sheet.js";
import { differ, edits, go, idOf, parseId, setEdits, state, turn } from "../state.js";
import * as tray from "../tray.js";

const COLOURS = [
  ["kind", "Kind of tokens"],
  ["layer", "Layer"],
  ["density", "Activation density"],
];
const LISTED = 60;
/** Ten classes of activation density, evenly spaced in its logarithm from 1e-4 on. */
const STEPS = 10;
const stepOf = (density) =>
  density <= 0 ? 0 : Math.max(0, Math.min(STEPS - 1, Math.floor((1 + Math.log10(density) / 4) * STEPS)));

export function render(root, page) {
  const { api, model } = page;
  if (!model.can.memories) return noMemories(root);
  let atlas = null;
  let map = null;
  let at = new Map(); // id -> point
  let matched = null; // points found by the search
  let brushed = [];
  let hidden = new Set(); // kinds or layers that are off
  const counted = h("p.soft", { role: "status" });
  const canvas = h("div");
  const pop = h("div", { id: "map-pop", class: "map-pop", hidden: true });
  const legend = h("div.row.map-legend");
  const panel = h("div.stack");
  const best = h("div");
  const chosenCard = card("Selected memory", null, panel);
  const over = sheet(chosenCard);
  const found = h("span.faint", { role: "status" });
  const input = textBox("Search the map", {
    placeholder: 'a word, -word, "·token", *part*, /expression/, name:label',
    style: { flex: "1 1 220px" },
    onkeydown: (e) => e.key === "Enter" && turn({ query: input.value.trim() }),
    onchange: () => turn({ query: input.value.trim() }),
  });
  fill(root, [
    h("div.stack", [
      h("div.row", h("h1", "Atlas of memories"), counted),
      h("div.atlas", [
        card(
          "All values",
          [
            segmented("Colour by", COLOURS.slice(0, model.can.index ? 3 : 2), colour(), (v) => turn({ colour: v })),
            segmented(
              "Dragging",
              [
                ["move", "Move"],
                ["brush", "Select"],
              ],
              "move",
              (v) => map?.brush(v === "brush"),
            ),
          ],
          [
            h("div.row", [
              input,
              button("Search", () => turn({ query: input.value.trim() }), { class: "btn" }),
              button("Clear", clear, { class: "quiet" }),
              found,
            ]),
            h("div.map-frame", canvas, pop, zoomers()),
            legend,
            about("atlas"),
          ],
        ),
        h("div.stack.atlas-side", chosenCard, card("Best memories", null, best)),
      ]),
    ]),
  ]);

  function colour() {
    return COLOURS.some(([name]) => name === state().colour) ? state().colour : "kind";
  }

  function zoomers() {
    const by = (text, label, run) => button(text, run, { class: "icon-btn", "aria-label": label, title: label });
    return h("div.map-zoom", [
      by("+", "Zoom in", () => map?.zoom(1.6)),
      by("−", "Zoom out", () => map?.zoom(1 / 1.6)),
      by("⤢", "Show the whole map", () => map?.look({ x: 0.5, y: 0.5, zoom: 1 })),
    ]);
  }

  function clear() {
    input.value = "";
    brushed = [];
    hidden = new Set();
    turn({ query: "", memory: "" });
    paint();
    drawPanel();
  }

  const load = () =>
    pane(canvas, async () => {
      fill(counted, "Reading the map …");
      await api.stream(
        "/atlas",
        {},
        (line) => {
          if (line.kind === "atlas") atlas = line.atlas;
          else fill(counted, `Computing the map, once: step ${line.done} of ${line.of}`);
        },
        { channel: "atlas", what: "Computing the map of all values" },
      );
      at = new Map(atlas.layer.map((layer, i) => [idOf({ layer, index: atlas.index[i] }), i]));
      const n = atlas.x.length;
      const [shown, all] = [n, atlas.n_values].map((count) => count.toLocaleString("en"));
      fill(counted, [
        n < atlas.n_values
          ? `A sample: ${shown} of ${all} values, evenly spaced over all layers${
              atlas.best.length ? " and with the best memories" : ""
            }, `
          : `${all} values (FFN neurons) `,
        `on ${atlas.islands.length} islands of similar direction`,
      ]);
      const [large] = [...atlas.islands].sort((a, b) => b.size - a.size);
      map = mount(
        canvas,
        {
          x: atlas.x,
          y: atlas.y,
          islands: atlas.islands,
          named: atlas.islands
            .map((one) => ({ ...one, names: one.tokens.map((t) => visible(t)) }))
            .sort((a, b) => b.size - a.size),
          spacing: large.radius / (Math.sqrt(Math.max(0, ((large.size - 1) / 3) * 4 + 1)) / 2 + 0.4),
          label: `Map of ${n} values. Arrows: the next value in a direction. Enter: its card. + and −: zoom.`,
        },
        {
          onpick: (i) => {
            turn({ memory: i < 0 ? "" : idAt(i) });
            if (i < 0) over.hide();
            else bring();
          },
          onhover: hover,
          onbrush: (points) => {
            brushed = points;
            turn({ memory: "" });
            paint();
            drawPanel();
            bring();
          },
          onview: remember,
        },
      );
      map.canvas.addEventListener("keydown", (e) => {
        if (e.key === "Enter" && state().memory) go({ screen: "memory" });
      });
      const [x, y, zoom] = state().view.split(",").map(Number);
      if (zoom) map.look({ x, y, zoom }, false);
      else if (at.has(state().memory))
        map.look({ x: atlas.x[at.get(state().memory)], y: atlas.y[at.get(state().memory)], zoom: 4 }, false);
      drawBest();
      await look();
    });

  /** On a narrow page: show the selection as a sheet, with the map above it. */
  function bring() {
    if (over.show()) canvas.parentElement.scrollIntoView({ block: "start" });
  }

  const idAt = (i) => idOf({ layer: atlas.layer[i], index: atlas.index[i] });
  const one = (i) => ({ layer: atlas.layer[i], index: atlas.index[i] });

  let remembered = 0;
  function remember({ x, y, zoom }) {
    clearTimeout(remembered);
    remembered = setTimeout(
      () => turn({ view: zoom === 1 ? "" : [x, y, zoom].map((v) => Number(v.toFixed(4))).join(",") }),
      150,
    );
  }

  /** Apply search, colour and selection of the address. */
  async function look() {
    const { query } = state();
    if (document.activeElement !== input) input.value = query;
    matched = null;
    fill(found);
    if (query.trim())
      await pane(found, async () => {
        const answer = await api.get("/atlas/matches", { q: query }, { channel: "atlas-search" });
        const points = answer.memories.map(([layer, index]) => at.get(idOf({ layer, index })));
        matched = new Set(points.filter((i) => i !== undefined));
        const missing = answer.memories.length - matched.size;
        fill(found, [
          `${answer.memories.length.toLocaleString("en")} found`,
          missing > 0 && `, ${missing.toLocaleString("en")} of them not on the map`,
          answer.notes.map((note) => ` ${note}`),
        ]);
      });
    paint();
    drawPanel();
  }

  /** The colour of every point as a number, and the CSS class of each number. */
  function groups() {
    const by = colour();
    if (by === "kind") return { groups: atlas.kind, classes: atlas.kinds.map((_, i) => `map-${i}`) };
    if (by === "layer") {
      const last = Math.max(1, model.n_layers - 1);
      const steps = Array.from({ length: model.n_layers }, (_, l) => `map-layer${Math.round((8 * l) / last)}`);
      return { groups: atlas.layer, classes: steps };
    }
    return { groups: atlas.density.map(stepOf), classes: Array.from({ length: STEPS }, (_, i) => `q${7 + i}`) };
  }

  function paint() {
    if (!map) return;
    const shading = groups();
    const off = matched || hidden.size || brushed.length;
    const chosen = at.get(state().memory) ?? -1;
    const inBrush = new Set(brushed);
    const faint = off
      ? atlas.x.map(
          (_, i) =>
            (matched && !matched.has(i)) || hidden.has(shading.groups[i]) || (inBrush.size > 0 && !inBrush.has(i)),
        )
      : null;
    map.paint({
      ...shading,
      faint,
      rings: atlas.best.slice(0, 40).flatMap((b) => (faint?.[b.point] ? [] : [b.point])),
      chosen,
    });
    drawLegend(shading);
  }

  /** The legend; a click shows or hides the points of a colour. */
  function drawLegend({ groups: of, classes }) {
    const by = colour();
    const counts = new Array(classes.length).fill(0);
    for (const g of of) counts[g]++;
    const text = {
      kind: (i) => atlas.kinds[i],
      layer: (i) => `Layer ${i}`,
      density: (i) => (i ? `from ${percent(10 ** (4 * (i / STEPS - 1)))}` : "below 0.03 %"),
    }[by];
    fill(legend, [
      classes.map(
        (name, i) =>
          counts[i] > 0 &&
          button(
            [h("i", { class: name }), text(i), h("small.faint", ` ${counts[i].toLocaleString("en")}`)],
            () => {
              if (!hidden.delete(i)) hidden.add(i);
              paint();
            },
            { class: "quiet", "aria-pressed": String(!hidden.has(i)), title: "Show or hide" },
          ),
      ),
      h("span.faint", "ringed: best memories"),
    ]);
  }

  const density = (i) => (atlas.density ? `active on ${percent(atlas.density[i])} of tokens` : "");
  const top = (i, k = 4) => atlas.top[i].slice(0, k).map((id) => [token(atlas.tokens[id]), " "]);
  const bestOf = (i) => atlas.best.find((b) => b.point === i);

  function hover(i, where) {
    pop.hidden = !(i >= 0);
    if (pop.hidden) return;
    const described = bestOf(i)?.description;
    fill(pop, [
      h("b", idAt(i), " ", names.at(idAt(i)) ?? ""),
      h("div", top(i)),
      described && h("div.soft", described),
      h("div.faint", density(i)),
    ]);
    pop.style.left = `${Math.min(where[0] + 14, canvas.clientWidth - 190)}px`;
    pop.style.top = `${where[1] + 14}px`;
  }

  /** The selected memory; else the brushed or found ones; else a hint. */
  function drawPanel() {
    const chosen = at.get(state().memory);
    if (chosen !== undefined) return drawOne(chosen);
    const list = brushed.length ? brushed : matched ? [...matched] : [];
    if (!list.length)
      return fill(panel, [
        parseId(state().memory)
          ? h("p.note", `${state().memory} is not on the map, which shows evenly spaced values.`)
          : h("p.faint", "Click a point for its memory, or select several by dragging."),
      ]);
    const shared = new Map();
    for (const i of list) for (const id of atlas.top[i]) shared.set(id, (shared.get(id) || 0) + 1);
    const common = [...shared].filter(([, n]) => n > 1).sort((a, b) => b[1] - a[1]);
    const taken = () =>
      setEdits([
        ...edits().filter((e) => e.target === "head" || !list.some((i) => idAt(i) === idOf(e))),
        ...list.map((i) => ({
          target: "coefficient",
          ...one(i),
          action: "scale",
          value: 0,
          positions: "all",
          on: true,
        })),
      ]);
    return fill(panel, [
      h("p", { role: "status" }, [
        h("b", `${list.length.toLocaleString("en")} ${list.length === 1 ? "memory" : "memories"}`),
      ]),
      common.length > 0 &&
        h("p", [
          h("span.faint", "Shared tokens "),
          common.slice(0, 8).map(([id, n]) => [token(atlas.tokens[id]), h("small.faint", ` ${n} `)]),
        ]),
      list.length <= 200
        ? h("div", button("Switch all off", taken, { class: "btn small" }))
        : h("p.faint", "Up to 200 can be switched off at once."),
      table(
        ["memory", "density", "top tokens"],
        list
          .slice(0, LISTED)
          .map((i) => [
            h("span", [
              button(idAt(i), () => turn({ memory: idAt(i) }), { class: "quiet tok" }),
              " ",
              names.at(idAt(i)) ?? "",
            ]),
            atlas.density ? percent(atlas.density[i]) : "",
            top(i),
          ]),
        list.length > LISTED ? `the first ${LISTED}` : "",
      ),
    ]);
  }

  function drawOne(i) {
    const described = bestOf(i);
    const island = atlas.islands[atlas.cluster[i]];
    const rest = atlas.cluster
      .flatMap((c, j) => (c === atlas.cluster[i] && j !== i ? [j] : []))
      .map((j) => [(atlas.x[j] - atlas.x[i]) ** 2 + (atlas.y[j] - atlas.y[i]) ** 2, j])
      .sort((a, b) => a[0] - b[0]);
    fill(panel, [
      // The description has a line of its own.
      h("h3", described ? memoryLink(one(i)).slice(0, names.isLabelled(one(i)) ? 2 : 1) : memoryLink(one(i))),
      described && h("p", described.description, h("span.faint", ` best memory ${described.rank}`)),
      h("p", top(i)),
      h("p.faint", [`layer ${atlas.layer[i]}`, atlas.kinds[atlas.kind[i]], density(i)].filter(Boolean).join(" · ")),
      h("div.row", [
        button("Open its card", () => go({ screen: "memory", compared: "" }), { class: "btn main small" }),
        button("Switch off", () => tray.off(one(i)), { class: "btn small" }),
        button("Clear selection", () => (turn({ memory: "" }), over.hide()), { class: "quiet" }),
      ]),
      h("p", [
        h("span.faint", `Island of ${island.size.toLocaleString("en")}: `),
        island.tokens.map((t) => [token(t), " "]),
      ]),
      h("h3", "Nearest on the map"),
      h("ul.stack.tight", [
        rest
          .slice(0, 6)
          .map(([, j]) =>
            h("li", [button(idAt(j), () => turn({ memory: idAt(j) }), { class: "quiet tok" }), " ", top(j, 3)]),
          ),
      ]),
    ]);
  }

  /** The gallery; a click shows a memory on the map. */
  function drawBest() {
    if (!atlas.best.length)
      return fill(best, [
        h("p.faint", "No gallery is saved for this model. ", h("code", "unembed memories"), " ranks its memories."),
      ]);
    const different = atlas.best.filter(({ listed }) => listed);
    return fill(best, [
      h("p.faint", "From the gallery, different ones first, as `unembed memories` lists them."),
      h("ol.best", [
        different.slice(0, 30).map((b) =>
          h("li", [
            button(
              [h("b", idAt(b.point)), " ", b.description],
              () => {
                turn({ memory: idAt(b.point) });
                map.look({ x: atlas.x[b.point], y: atlas.y[b.point], zoom: Math.max(4, map.view().zoom) });
              },
              { class: "quiet", title: `score ${num(b.score)}` },
            ),
          ]),
        ),
      ]),
    ]);
  }

  return {
    update(now, before) {
      if (before.screen !== now.screen) return load();
      if (!atlas) return undefined;
      if (now.colour !== before.colour) hidden = new Set();
      if (differ(now, before, "query")) return look();
      if (differ(now, before, "memory", "colour", "edits")) {
        const chosen = at.get(now.memory);
        if (now.memory !== before.memory && chosen !== undefined) map.reveal(chosen);
        paint();
        drawPanel();
      }
      return undefined;
    },
    key(event) {
      if (event.key !== "Escape" || !(state().memory || brushed.length)) return false;
      brushed = [];
      turn({ memory: "" });
      paint();
      drawPanel();
      return true;
    },
    destroy: () => map?.destroy(),
    code: codeQuery,
    exported: () =>
      atlas && {
        name: "atlas",
        json: atlas,
        rows: [
          ["layer", "index", "x", "y", "island", "kind", "density", "top_tokens"],
          ...atlas.x.map((x, i) => [
            atlas.layer[i],
            atlas.index[i],
            x,
            atlas.y[i],
            atlas.cluster[i],
            atlas.kinds[atlas.kind[i]],
            atlas.density?.[i] ?? "",
            JSON.stringify(atlas.top[i].map((id) => atlas.tokens[id])),
          ]),
        ],
      },
  };

  function codeQuery() {
    const { query } = state();
    if (!query) return ["from unembed.memories.value_map import value_map", "", "print(value_map(lm))"];
    const index = model.can.index ? "index" : "None";
    return [
      "from unembed.index.atlas import atlas_matches",
      "",
      `print(atlas_matches(lm, ${index}, ${literal(query)}))`,
    ];
  }
}
