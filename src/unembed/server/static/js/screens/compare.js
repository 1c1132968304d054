/** Two prompts: activation patching shows which layers and positions make their predictions differ. */
import { literal } from "../code.js";
import { button, fill, fixed, h, num, percent, segmented, signed, textBox, worded } from "../dom.js";
import * as bars from "../islands/bars.js";
import * as patches from "../islands/patches.js";
import { token, visible } from "../islands/tokens.js";
import { about, asTable, candidates, card, comparedPrompts, pane, waiting } from "../parts.js";
import { differ, go, idOf, parseId, state, turn } from "../state.js";
import * as tray from "../tray.js";

const POINTS = [
  ["resid_pre", "Residual stream", "the residual stream that enters layer"],
  ["attn_out", "Attention output", "the attention output of layer"],
  ["mlp_out", "FFN output", "the FFN output of layer"],
];
const SIDES = [
  ["clean", "Clean prompt"],
  ["corrupted", "Corrupted prompt"],
];
const NEW_TOKENS = 12;

export function render(root, page) {
  const { api, model } = page;
  let view = null;
  let found = null;
  let inside = null;
  const texts = Object.fromEntries(
    SIDES.map(([side, name]) => [
      side,
      h("textarea", {
        rows: 2,
        "aria-label": name,
        spellcheck: "false",
        onkeydown: (e) => e.key === "Enter" && !e.shiftKey && (e.preventDefault(), submit()),
      }),
    ]),
  );
  const both = h("div.two");
  const difference = h("p", { role: "status" });
  const map = h("div");
  const scale = h("p.faint");
  const cellSentence = h("p.soft", { role: "status" });
  const mapTable = h("div");
  const parts = h("div.stack");
  const texts3 = h("div.three");
  const statusLine = h("p.soft", { role: "status" });
  const target = textBox("Target token", { size: 10, onchange: () => turn({ token: target.value }) });
  const rival = textBox("Compared with", { size: 10, onchange: () => turn({ against: rival.value }) });
  fill(root, [
    h("div.stack.bounded", [
      h("h1", "Compare two prompts"),
      h("div.two", [SIDES.map(([side, name]) => h("label.stack.tight", h("span.faint", name), texts[side]))]),
      h("div.row", [
        button("Compare", submit, { class: "btn main", title: "Enter" }),
        button("Swap", () => go({ prompt: second(), other: first(), token: "", against: "", ...NOTHING_PICKED }), {
          class: "btn",
        }),
      ]),
      card("Next token", [worded("target", target), worded("against", rival)], both, difference),
      card(
        "Activation patching",
        [
          segmented("Patch", POINTS, state().point, (point) => turn({ point })),
          segmented(
            "Direction",
            [
              ["denoising", "Clean into corrupted", "denoising"],
              ["noising", "Corrupted into clean", "noising"],
            ],
            state().direction,
            (direction) => turn({ direction }),
          ),
        ],
        [map, scale, cellSentence, about("patching"), mapTable],
      ),
      h("div.two", [
        card("Heads and memories of the cell", null, parts),
        card("Continuations", button("Continue all three", run, { class: "btn small" }), statusLine, texts3),
      ]),
    ]),
  ]);

  function submit() {
    const [prompt, other] = SIDES.map(([side]) => texts[side].value);
    if (!prompt.trim() || !other.trim()) return fill(difference, "Write both prompts.");
    go({ prompt, other, token: "", against: "", ...NOTHING_PICKED });
    return undefined;
  }

  const query = () => ({
    clean: first(),
    corrupted: second(),
    token: state().token || null,
    against: state().against || null,
  });

  async function load() {
    texts.clean.value = first();
    texts.corrupted.value = second();
    found = inside = null;
    for (const el of [parts, texts3, statusLine]) fill(el);
    if (!second()) {
      view = null;
      for (const el of [map, scale, cellSentence, mapTable, difference]) fill(el);
      fill(both, h("p.note", "Write a second prompt: best one that differs in a word or two."));
      return texts.corrupted.focus();
    }
    const settled = waiting(both, map);
    await pane(both, async () => {
      view = await api.post("/comparison", query(), { channel: "comparison", what: "Comparing" });
      drawBoth();
      await patch();
    });
    settled();
  }

  function drawBoth() {
    const { target: one, against: other } = view;
    target.value = one.token;
    rival.value = other.token;
    const paired = { clean: new Map(view.pairs), corrupted: new Map(view.pairs.map(([a, c]) => [c, a])) };
    const ids = Object.fromEntries(SIDES.map(([side]) => [side, view[side].tokens.map((t) => t.id)]));
    fill(both, [
      SIDES.map(([side, name], i) => {
        const { tokens, prediction, logits } = view[side];
        const away = SIDES[1 - i][0];
        return h("div.stack.tight", [
          h("h3", name),
          h("p.aligned", [
            tokens.map((t, at) => {
              const there = paired[side].get(at);
              const same = there !== undefined && ids[away][there] === t.id;
              const title = there === undefined ? "no corresponding token" : `corresponds to position ${there}`;
              return h(
                "span",
                {
                  class: same ? "common" : there === undefined ? "alone" : "differs",
                  title: `position ${at}: ${title}`,
                },
                [token(t.token)],
              );
            }),
          ]),
          candidates(prediction, { n: 5, onpick: (c) => turn({ token: `#${c.id}`, against: "" }) }),
          h("p.faint", token(one.token), ` logit ${num(logits[0])}, `, token(other.token), ` ${num(logits[1])}`),
        ]);
      }),
    ]);
    const [clean, corrupted] = SIDES.map(([side]) => view[side].logits[0] - view[side].logits[1]);
    fill(difference, [
      "Logit of ",
      token(one.token),
      " minus ",
      token(other.token),
      ": ",
      h("b", signed(clean)),
      " with the clean prompt, ",
      h("b", signed(corrupted)),
      ` with the corrupted one. Alignment ${view.alignment}.`,
    ]);
  }

  /** Whether the tokens of both prompts align one to one. */
  const aligned = () => view?.clean.tokens.length === view?.corrupted.tokens.length;

  /** Patch every layer and position, one at a time. */
  const patch = () =>
    pane(map, async () => {
      const { point, direction } = state();
      found = await api.post("/patching", { ...query(), point, direction }, { channel: "patching", what: "Patching" });
      drawMap();
      await open();
    });

  /** The chosen cell as [layer, column], or null. */
  /** @returns {[number, number] | null} the layer and the column of the chosen cell */
  function cell() {
    const { layer, position } = state();
    const column = found.positions.indexOf(Number(position));
    return layer === "" || position === "" || column < 0 || Number(layer) >= found.values.length
      ? null
      : [Number(layer), column];
  }

  const into = () => (state().direction === "denoising" ? "corrupted" : "clean");

  function drawMap() {
    const at = cell();
    const { values, recovered, positions, tokens } = found;
    const [away, here] = into() === "corrupted" ? [view.clean, view.corrupted] : [view.corrupted, view.clean];
    const there = new Map(
      view.pairs.map(/** @returns {[number, number]} */ ([a, c]) => (into() === "corrupted" ? [c, a] : [a, c])),
    );
    const [, name, what] = POINTS.find(([point]) => point === found.point) ?? POINTS[0];
    patches.mount(
      map,
      {
        values: recovered,
        rows: recovered.map((_, n) => `Layer ${n}`),
        columns: positions.map((p, i) => ({
          text: tokens[i],
          differs: here.tokens[p].id !== away.tokens[there.get(p)]?.id,
        })),
        chosen: at,
        label: `${name}: fraction recovered by layer and position`,
        name: (n, c) =>
          `Layer ${n}, position ${positions[c]} ${visible(tokens[c])}: ${percent100(recovered[n][c])} recovered, ` +
          `logit difference ${signed(values[n][c])}`,
      },
      { onpick: (n, c) => turn({ layer: String(n), position: String(positions[c]), patched: "" }) },
    );
    fill(scale, [
      `Fraction recovered: 0 as with the ${into()} prompt, 1 as with the ${away === view.clean ? "clean" : "corrupted"} ` +
        "one, negative away from it.",
    ]);
    fill(cellSentence, [
      at
        ? [
            `With ${what} ${at[0]} at `,
            token(tokens[at[1]]),
            ` patched, the logit difference is ${signed(values[at[0]][at[1]])}: `,
            h("b.whole", percent100(recovered[at[0]][at[1]])),
            " of the way to the other prompt.",
          ]
        : "Each cell is a run with one patched activation; choose one to see its heads and memories.",
    ]);
    fill(mapTable, [
      asTable("As a table", ["layer", "position", "token", "logit difference", "fraction recovered"], () =>
        recovered.flatMap((row, n) => row.map((x, c) => [n, positions[c], visible(tokens[c]), values[n][c], x])),
      ),
    ]);
  }

  /** Heads and memories of the chosen layer, patched at the chosen position. */
  const open = () =>
    pane(parts, async () => {
      inside = null;
      const at = cell();
      if (!at) return fill(parts, h("p.faint", "Choose a cell of the map."));
      const { direction } = state();
      const patchQuery = { ...query(), direction, position: found.positions[at[1]] };
      const kinds = [["z", "heads"], ...(model.can.memories ? [["coefficients", "memories"]] : [])];
      const answers = await Promise.all(
        kinds.map(([point]) =>
          api.post("/patching", { ...patchQuery, point, top: 12 }, { channel: `patching ${point}` }),
        ),
      );
      inside = Object.fromEntries(kinds.map(([, name], i) => [name, answers[i]]));
      drawParts(at);
      return undefined;
    });

  function drawParts([layer, column]) {
    const rows = {
      heads: inside.heads.recovered[layer].map((x, n) => ({
        id: idOf({ layer, index: n }, "head"),
        value: x[0],
        of: inside.heads.values[layer][n][0],
      })),
      memories:
        inside.memories?.recovered[layer][0].map((x, k) => ({
          id: idOf({ layer, index: inside.memories.indices[layer][0][k] }),
          value: x,
          of: inside.memories.values[layer][0][k],
          given: inside.memories.given[layer][0][k],
        })) ?? [],
    };
    const picked = state().patched;
    fill(parts, [
      h("p.soft", `Layer ${layer} at `, token(found.tokens[column]), ` (position ${found.positions[column]})`),
      Object.entries(rows).map(([name, list]) => {
        if (!list.length) return null;
        const box = h("div");
        bars.mount(
          box,
          {
            signed: true,
            least: Math.max(0.05, ...Object.values(rows).flatMap((all) => all.map((one) => Math.abs(one.value)))),
            rows: list
              .sort((a, b) => Math.abs(b.value) - Math.abs(a.value))
              .slice(0, 8)
              .map((row) => ({
                label: h("span.tok.id", row.id),
                value: row.value,
                text: percent100(row.value),
                title: `logit difference ${signed(row.of)} with it patched`,
                cls: row.id === picked ? "on" : "",
                row,
              })),
          },
          { onpick: ({ row }) => turn({ patched: row.id }) },
        );
        return h("div", [
          h("h3", name === "heads" ? "Heads" : "Memories (FFN neurons) whose sub-updates differ most"),
          box,
        ]);
      }),
      picked && chosen(rows),
    ]);
  }

  function chosen(rows) {
    const row = [...rows.heads, ...rows.memories].find((one) => one.id === state().patched);
    const one = parseId(state().patched);
    if (!row || !one) return null;
    const memory = one.kind === "memory";
    return h("div.row.note", [
      h("b", row.id),
      button(
        "Open its card",
        () => go(memory ? { screen: "memory", memory: row.id } : { screen: "heads", head: row.id }),
        { class: "btn small" },
      ),
      memory &&
        button(
          `Set to ${num(row.given)} and intervene`,
          () => {
            const [prompt] = [view[into()].prompt];
            go({ prompt });
            tray.add({
              target: "coefficient",
              ...one,
              action: "set",
              value: Number(row.given.toPrecision(4)),
              positions: [Number(state().position)],
            });
            go({ screen: "intervene" });
          },
          { class: "btn small", title: "Adds an edit that sets the coefficient of the other prompt at this position" },
        ),
    ]);
  }

  /** Continuations of both prompts and of the patched run. */
  async function run() {
    const at = found && cell();
    if (!at) return fill(statusLine, "Choose a cell of the map first: it is patched while the text is continued.");
    const picked = parseId(state().patched);
    const whole = (layer) => `layer ${layer}, ${POINTS.find(([p]) => p === found.point)[1].toLowerCase()}`;
    const names = {
      clean: "Clean",
      corrupted: "Corrupted",
      patched: `Patched: ${picked ? state().patched : whole(at[0])}`,
    };
    const boxes = Object.fromEntries(Object.keys(names).map((side) => [side, h("div.text", { data: { side } })]));
    fill(texts3, [Object.entries(names).map(([side, name]) => h("div.stack.tight", h("h3", name), boxes[side]))]);
    fill(boxes.clean, h("span.given", view.clean.prompt));
    fill(boxes.corrupted, h("span.given", view.corrupted.prompt));
    fill(boxes.patched, h("span.given", view[into()].prompt));
    fill(statusLine);
    const point = picked ? (picked.kind === "head" ? "z" : "coefficients") : found.point;
    try {
      await api.stream(
        "/patching/continuation",
        {
          clean: first(),
          corrupted: second(),
          point,
          direction: state().direction,
          layer: at[0],
          position: found.positions[at[1]],
          index: picked ? picked.index : null,
          max_new_tokens: NEW_TOKENS,
        },
        (line) =>
          line.kind === "token" && boxes[line.side].append(h("span", { title: percent(line.probability) }, line.token)),
        { channel: "patched", what: "Generating" },
      );
    } catch (error) {
      if (error.code === "superseded") fill(statusLine, "Stopped.");
      else fill(statusLine, [error.message, error.why, error.fix].filter(Boolean).join(". "));
    }
    return undefined;
  }

  return {
    update(now, before) {
      if (differ(now, before, "screen", "prompt", "other", "token", "against")) return load();
      if (!view) return undefined;
      if (differ(now, before, "point", "direction")) return patch();
      if (differ(now, before, "layer", "position")) {
        drawMap();
        return open();
      }
      if (differ(now, before, "patched") && inside) drawParts(cell());
      return undefined;
    },
    key(event) {
      if (event.key !== "Escape" || state().layer === "") return false;
      turn(NOTHING_PICKED);
      return true;
    },
    code: () => [
      `patching = lm.patch(${literal(first())}, ${literal(second() || first())}, ${literal(state().point)},`,
      `    unembed.logit_difference(${view?.target.id ?? 0}, ${view?.against.id ?? 1}), ` +
        `direction=${literal(state().direction)}${aligned() ? "" : ', alignment="auto"'})`,
      "print(patching.to_table())",
    ],
    exported: () =>
      found && {
        name: "patching",
        json: { comparison: view, patching: found, heads: inside?.heads, memories: inside?.memories },
        rows: [
          ["layer", "position", "token", "logit_difference", "fraction_recovered"],
          ...found.recovered.flatMap((row, n) =>
            row.map((x, c) => [n, found.positions[c], found.tokens[c], found.values[n][c], x]),
          ),
        ],
      },
  };
}

const NOTHING_PICKED = { layer: "", position: "", patched: "" };
const first = () => comparedPrompts()[0];
const second = () => comparedPrompts()[1];
const percent100 = (x) => `${fixed(100 * x, 1)} %`;
