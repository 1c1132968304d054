/** The picture of a prediction's circuit, and what can be measured of the chosen part. */
import { boxes, button, entering, fill, h, statusLine, textBox } from "../dom.js";
import { mount } from "../islands/flow.js";
import { removed } from "../islands/flow-card.js";
import { effects } from "../islands/flow-groups.js";
import { nameOf } from "../names.js";
import { link, loading, pane, prompt } from "../parts.js";
import { questionBody } from "../question.js";
import { state, turn } from "../state.js";
import * as tray from "../tray.js";

const isWriter = (node) => node && (node.kind === "head" || node.kind === "memory");

/**
 * The pane of the picture. Its `load(onfound)` asks the server and draws; `draw(change)` draws again, such as with another
 * number of boxes. `position()`: where the prediction is.
 */
export function flowPane({ api }, position = () => -1) {
  /** @type {any} */ const t = { el: h("div"), data: null, island: null };
  /** The question about the prompt, as the body of a request; edits are ignored. */
  const asked = () => ({ ...questionBody(position(), prompt()), edits: [] });

  async function load(onfound = (_data) => {}) {
    t.island?.destroy();
    t.island = null;
    const step = statusLine("p.faint");
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

/**
 * Controls for a head, a memory or a group: they measure the prediction with it changed, or switch it off in the edits.
 */
function actions(t, node) {
  const found = statusLine("div");
  const members = node.kind === "group" ? node.group.nodes.map((i) => t.data.nodes[i]) : [node];
  const parts = members.map(({ kind, layer, index, position }) => ({ part: kind, layer, index, at: position }));
  const of = node.kind === "group" ? ofGroup(t, parts) : ofPart(t, node, parts[0]);
  const measure = (...change) => pane(found, async () => fill(found, await of.measured(...change)));
  const there = () => input.value.trim() && measure(0, input.value);
  const input = textBox("Another prompt", { placeholder: "another prompt", title: of.title, onenter: there });
  return h("div.flow-acts", [
    h("div.row", of.controls(measure)),
    of.more,
    h("div.row", input, button("From there", there, "btn small")),
    found,
  ]);
}

/** A group can be multiplied by a factor, or its parts get the values that they have after another prompt. */
function ofGroup({ api, asked, data }, parts) {
  const box = textBox("Multiply the group by", { placeholder: "0.5" });
  const off = () => tray.replace(offThere(parts));
  const title = "Switch its parts off at these positions, on all screens";
  const isEditable = parts.every(({ part }) => part !== "feature");
  return {
    async measured(factor, other = null) {
      const body = { ...asked(), parts, factor, other };
      const found = await api.post("/flow/group", body, { channel: "flow-without", what: "Measuring" });
      if (other === null) return effects(data, [{ change: "scale", factor, found }]);
      return effects({ ...data, without: `its values after “${other}”` }, [{ change: "patch", factor, found }]);
    },
    controls(measure) {
      const times = () => {
        const factor = Number(box.value.replace("−", "-"));
        if (box.value.trim() && Number.isFinite(factor)) measure(factor);
      };
      box.onkeydown = entering(times);
      return [button("Off", () => measure(0), "btn small"), box, button("Multiply", times, "btn small")];
    },
    more: isEditable && button("Add to the edits", off, "btn small", { title }),
  };
}

/** A head or a memory can be switched off, or get the value that it has after another prompt. */
function ofPart({ api, asked, data }, node, part) {
  const edit = () => tray.off(node, node.kind === "head" ? "head" : "coefficient");
  return {
    title: "a prompt of as many tokens: this part gets the value that it has there",
    async measured(_factor, other = null) {
      const body = { ...asked(), ...part, other };
      const result = await api.post("/flow/without", body, { channel: "flow-without", what: "Measuring" });
      return removed(data, { removed: result }, other === null ? "0 in its place" : `its value after “${other}”`);
    },
    controls: (measure) => [
      button("Off", () => measure(0), "btn small", { title: "Measure the prediction with 0 in its place" }),
      button("Add to the edits", edit, "btn small", { title: "Switch it off at every position, on all screens" }),
      h("span", link(node, node.kind)[0]),
    ],
  };
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

export const rowsOf = ({ nodes, edges }) => [
  ["source", "target", "logits"],
  ...edges.map(([source, target, weight]) => [nodes[source].name, target < 0 ? "metric" : nodes[target].name, weight]),
];

/** The question of the picture, as the pickers of the question take it. */
export function questionOf({ ids, target, against, likely }) {
  const one = (i, token) => ({ id: ids[i], token });
  return { target: one(0, target), against: against === null ? null : one(1, against), prediction: likely };
}
