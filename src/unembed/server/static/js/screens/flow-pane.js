/** The picture of a prediction's circuit, loaded with its progress; what one can do with the chosen part. */
import { boxes, button, fill, h, textBox } from "../dom.js";
import { mount } from "../islands/flow.js";
import { removed } from "../islands/flow-card.js";
import { effects } from "../islands/flow-groups.js";
import { visible } from "../islands/tokens.js";
import { nameOf } from "../names.js";
import { link, loading, pane, prompt } from "../parts.js";
import { questionBody } from "../question.js";
import { state, turn } from "../state.js";
import * as tray from "../tray.js";

const isWriter = (node) => node && (node.kind === "head" || node.kind === "memory");

/**
 * `{el, load, draw, destroy, data}`; `load(onfound)` asks the server and draws; `draw(change)` draws again, with another
 * number of boxes. `position`: where the prediction is.
 */
export function flowPane({ api }, position = () => -1) {
  /** @type {any} */ const t = { el: h("div"), data: null, island: null };
  /** The question about the prompt, as the requests name it; edits play no part. */
  const asked = () => ({ ...questionBody(position(), prompt()), edits: [] });

  async function load(onfound = (_data) => {}) {
    t.island?.destroy();
    t.island = null;
    const [step] = boxes("p.faint");
    step.setAttribute("role", "status");
    fill(t.el, step, loading("Finding the circuit", 8));
    await pane(t.el, async () => {
      const { other, unpaired } = state();
      const body = { ...asked(), other: other || null, unpaired: !!unpaired };
      const began = performance.now();
      const on = (line) => {
        const seconds = Math.round((performance.now() - began) / 1000);
        if (line.kind === "flow") t.data = line.flow;
        else fill(step, `${line.step} …${seconds > 1 ? ` ${seconds} s so far` : ""}`);
      };
      await api.stream("/flow", body, on, { channel: "flow", what: "Finding the circuit" });
      onfound(t.data);
      show();
    });
  }

  function show() {
    const [host] = boxes("div");
    fill(t.el, host);
    const onpick = (node) => turn({ node: node?.name ?? "" });
    const named = (node) => (isWriter(node) ? nameOf(node, node.kind) : "");
    const boxed = Number(state().boxes) || undefined;
    const more = (node) =>
      isWriter(node) || node?.kind === "group" ? actions({ api, asked, data: t.data }, node) : null;
    t.island = mount(host, t.data, { boxes: boxed, chosen: state().node, onpick, more, named });
  }

  return {
    el: t.el,
    load,
    draw: (change) => t.island?.draw(change),
    destroy: () => t.island?.destroy(),
    get data() {
      return t.data;
    },
  };
}

/** What one can do with a group: multiply it, or give it the values that it has after another prompt. */
function groupActions({ api, asked, data }, { group }) {
  const found = h("div", { role: "status" });
  const parts = group.nodes.map((i) => {
    const { kind, layer, index, position } = data.nodes[i];
    return { part: kind, layer, index, at: position };
  });
  const measure = (factor, other, name) =>
    pane(found, async () => {
      const body = { ...asked(), parts, factor, other };
      const result = await api.post("/flow/group", body, { channel: "flow-without", what: "Measuring" });
      const row = { change: "scale", factor, found: result };
      fill(
        found,
        effects(other === null ? data : { ...data, without: name }, [
          other === null ? row : { ...row, change: "patch" },
        ]),
      );
    });
  const times = () => {
    const factor = Number(factorBox.value.replace("−", "-"));
    if (factorBox.value.trim() && Number.isFinite(factor)) measure(factor, null, "");
  };
  const there = () => otherBox.value.trim() && measure(0, otherBox.value, `its values after “${otherBox.value}”`);
  const factorBox = textBox("Multiply the group by", { placeholder: "0.5", onenter: times });
  const otherBox = textBox("Another prompt", { placeholder: "another prompt", onenter: there });
  return h("div.flow-acts", [
    h(
      "div.row",
      button("Off", () => measure(0, null, ""), "btn small"),
      factorBox,
      button("Multiply", times, "btn small"),
    ),
    parts.every(({ part }) => part !== "feature") &&
      button("Add to the edits", () => tray.replace(offThere(parts)), "btn small", {
        title: "Switch its parts off at these positions, on all screens",
      }),
    h("div.row", [otherBox, button("From there", there, "btn small")]),
    found,
  ]);
}

/** What one can do with a head or memory: measure without it, with another prompt's value, edit it, open its card. */
function actions({ api, asked, data }, node) {
  if (node.kind === "group") return groupActions({ api, asked, data }, node);
  const found = h("div", { role: "status" });
  async function measure(other) {
    await pane(found, async () => {
      const { kind, layer, index, position } = node;
      const body = { ...asked(), part: kind, layer, index, at: position, other };
      const result = await api.post("/flow/without", body, { channel: "flow-without", what: "Measuring" });
      fill(found, removed(data, { removed: result }, other === null ? "0 in its place" : `its value after “${other}”`));
    });
  }
  const input = textBox("Another prompt", {
    placeholder: "another prompt",
    title: "a prompt of as many tokens: this part gets the value that it has there",
    onenter: () => input.value.trim() && measure(input.value),
  });
  const edit = () => tray.off(node, node.kind === "head" ? "head" : "coefficient");
  return h("div.flow-acts", [
    h("div.row", [
      button("Off", () => measure(null), "btn small", { title: "Measure the prediction with 0 in its place" }),
      button("Add to the edits", edit, "btn small", { title: "Switch it off at every position, on all screens" }),
      h("span", link(node, node.kind)[0]),
    ]),
    h("div.row", [input, button("From there", () => input.value.trim() && measure(input.value), "btn small")]),
    found,
  ]);
}

/** Edits that switch parts off where they are. */
function offThere(parts) {
  const found = {};
  for (const { part, layer, index, at } of parts) {
    const target = part === "head" ? "head" : "coefficient";
    const edit = tray.edited({ layer, index }, "scale", 0);
    (found[`${part} ${layer} ${index}`] ??= { ...edit, target, positions: [], on: true }).positions.push(at);
  }
  return Object.values(found);
}

/** The rows of a file. */
export const rowsOf = ({ nodes, edges }) => [
  ["source", "target", "logits"],
  ...edges.map(([source, target, weight]) => [nodes[source].name, target < 0 ? "metric" : nodes[target].name, weight]),
];

/** The question of the picture, as the pickers show it. */
export function questionOf({ ids, target, against, likely }) {
  const one = (i, token) => ({ id: ids[i], token });
  return { target: one(0, target), against: against === null ? null : one(1, against), prediction: likely };
}

export const asText = ({ target, against }) =>
  against === null ? visible(target) : `${visible(target)} over ${visible(against)}`;
