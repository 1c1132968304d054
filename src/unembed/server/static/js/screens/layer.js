/** One layer at one position: what was there, what was added, what is there now. */
import { button, fill, h, percent, segmented, signed } from "../dom.js";
import { activeEdits, go, state } from "../state.js";
import { about, account, asTable, candidates, card, failure, pane, prompt, subUpdate } from "../parts.js";
import { nameOf } from "../names.js";
import { token, visible, mount as strip } from "../islands/tokens.js";

const SORTS = [["share", "By size"], ["effect", "By effect on the target"], ["coefficient", "By coefficient"]];

/** As many sub-updates as the server lists at once. */
const MOST = 500;

/** The fewest, largest first, that hold so much of the update's size; all of them when they hold less. */
function until(all, size) {
  let held = 0;
  return all.filter((u) => held < size && ((held += u.share), true));
}

export function render(root, page) {
  const { api, model } = page;
  let data = null;
  let view = null;
  let wanted = 20;
  let sort = "share";
  let most90 = false;
  let side = "all";
  const title = h("h1", {});
  const crumbs = h("div", { class: "soft" });
  const tokens = h("div", { "aria-label": "Positions" });
  const three = h("div", { class: "sandwich wide" });
  const list = h("ol", {});
  const listNote = h("p", { class: "faint" });
  const books = h("div");
  const table = h("div");
  const move = (n) => go({ L: String(Math.max(0, Math.min(model.n_layers - 1, layer() + n))) }, { push: false });
  const target = h("input", { type: "text", "aria-label": "Target token", placeholder: "a token", title: "a token, its space included", onchange: () => go({ t: target.value }, { push: false }) });
  fill(root, h("div", { class: "stack" },
    h("div", { class: "row" }, title, h("span", { class: "spacer" }), button("Layer below", () => move(-1), { class: "btn small", title: "[" }), button("Layer above", () => move(1), { class: "btn small", title: "]" })),
    crumbs, tokens,
    card("Before, between, after", h("label", { class: "row faint" }, "Target", target), three, about("The stream entering the layer, after its attention, and after its FFN, each read through the model's own final norm and output matrix. ▲ ▼ say how many places a token moved within the list.")),
    h("div", { class: "two" },
      card("Sub-updates of the FFN", [segmented("Order", SORTS, sort, (v) => ((sort = v), drawList())), segmented("Show", [["all", "All"], ["for", "For the target"], ["against", "Against"], ...(model.can.index ? [["named", "Named"], ["unnamed", "Not named"]] : [])], side, (v) => ((side = v), drawList()))], list, listNote, about("The FFN's update is a sum of memories: coefficient times value. Size is |coefficient| × length of the value, and a memory's share is its size over the sum of all sizes of the layer. The effect is what it adds to the target's logit, with the final norm held as it was."), table),
      card("The account of the target's logit", null, books))));

  const layer = () => (state().L === "" ? model.n_layers - 1 : Math.max(0, Math.min(model.n_layers - 1, Number(state().L) || 0)));

  async function load() {
    root.classList.add("waiting");
    await pane(three, async () => {
      data = await api.trace(prompt(), activeEdits());
      await open();
    });
    root.classList.remove("waiting");
  }

  async function open() {
    const n = data.tokens.length;
    const pos = state().pos === "" ? n - 1 : Math.max(0, Math.min(n - 1, Number(state().pos) || 0));
    try {
      view = await api.get(`/traces/${data.id}/layers/${layer()}`, { position: pos, token: state().t, memories: wanted, top: 10 }, { channel: "layer", what: "Reading the layer" });
    } catch (error) {
      return error.message.startsWith("trace") ? reload() : failure(three, error, open);
    }
    draw();
  }

  /** The server has forgotten the trace: ask it anew. */
  const reload = () => (api.forget("trace "), load());

  function draw() {
    const one = view.layers[0];
    page.tokens = data.tokens.map((t) => t.token);
    page.crumbs();
    title.textContent = `Layer ${one.layer}`;
    fill(crumbs, "at ", token(data.tokens[view.position].token), ` position ${view.position}; target `, token(view.target.token));
    target.value = state().t.startsWith("#") ? view.target.token : state().t;
    strip(tokens, { tokens: data.tokens.map((t) => t.token), selected: view.position }, { onpick: (p) => go({ pos: String(p), t: "" }, { push: false }) });
    const pick = (c) => go({ t: `#${c.id}` }, { push: false });
    fill(three,
      column("Entering", one.before, null, one.rank_before),
      one.middle ? column("After attention", one.middle, one.before, one.rank_middle) : h("p", { class: "note" }, "Attention and FFN of this model read the same stream and are added together, or the layer has no FFN: there is no point between them."),
      column("After the FFN", one.after, one.middle || one.before, one.rank_after));
    function column(name, now, before, rank) {
      return h("div", {}, h("h3", {}, name), candidates(now, { before, n: 10, onpick: pick, rank }));
    }
    drawList();
    if (view.accounts[0]) account(books, view.accounts[0], data.tokens);
  }

  function drawList() {
    if (!view) return;
    const all = most90 ? until(view.layers[0].sub_updates, 0.9) : view.layers[0].sub_updates;
    if (!all.length) {
      fill(list, h("li", { class: "note" }, model.can.memories ? "No sub-updates." : "This model has no FFN, or its memories belong to experts; a layer of a mixture cannot be read as one set of memories."));
      fill(listNote);
      return;
    }
    const shown = all.filter((u) => ({ all: true, for: u.score > 0, against: u.score <= 0, named: !!nameOf(u), unnamed: !nameOf(u) })[side]);
    const by = { share: (u) => u.share, effect: (u) => Math.abs(u.score), coefficient: (u) => Math.abs(u.coefficient) }[sort];
    const most = Math.max(...all.map((u) => u.share));
    const started = performance.now();
    fill(list, [...shown].sort((a, b) => by(b) - by(a)).map((u) => subUpdate(u, { most, target: view.target.token })));
    requestAnimationFrame(() => performance.measure("sort", { start: started, end: performance.now() }));
    const sum = (of) => all.reduce((total, u) => total + of(u), 0);
    const ffn = view.accounts[0]?.rows.find((row) => row.layer === layer() && row.label.startsWith("ffn"));
    const rest = model.d_mlp - all.length;
    fill(listNote, `The ${all.length} listed, by |coefficient| × length of the value, are ${percent(sum((u) => u.share))} of the update's size. `,
      rest > 0 && `${rest.toLocaleString("en")} others: ${percent(Math.max(0, 1 - sum((u) => u.share)))}`, rest > 0 && ffn && `, ${signed(ffn.share - sum((u) => u.score))} to the logit with the FFN's bias`, rest > 0 && ". ",
      rest > 0 && !most90 && wanted < MOST && button("Show more", () => ((wanted = Math.min(MOST, wanted * 4)), open()), { class: "quiet" }),
      button(most90 ? "Show all listed" : "Show until 90 %", () => ((most90 = !most90), (wanted = MOST), open()), { class: "quiet" }));
    fill(table, asTable("As a table", ["memory", "coefficient", "length of value", "share", "effect on target", "promotes"], () => all.map((u) => [`L${u.layer}M${u.index}`, u.coefficient, u.norm, u.share, u.score, u.top_tokens.slice(0, 6).map(visible).join(" ")])));
  }

  return {
    update(now, before) {
      if (before.screen !== now.screen || now.p !== before.p || now.iv !== before.iv || now.off !== before.off) return load();
      if (data && (now.L !== before.L || now.pos !== before.pos || now.t !== before.t)) return open();
    },
    key(event) {
      const step = { "[": -1, "]": 1 }[event.key];
      if (step) return move(step), true;
      if (data && (event.key === "," || event.key === ".")) return go({ pos: String(Math.max(0, Math.min(data.tokens.length - 1, view.position + (event.key === "," ? -1 : 1)))), t: "" }, { push: false }), true;
      if (event.key === "Escape") return go({ screen: "trace" }), true;
      return false;
    },
    exported: () => view && { name: `layer-${layer()}`, json: view, rows: [["layer", "index", "coefficient", "norm", "contribution", "share", "score", "top_tokens"], ...view.layers[0].sub_updates.map((u) => [u.layer, u.index, u.coefficient, u.norm, u.contribution, u.share, u.score, JSON.stringify(u.top_tokens)])] },
  };
}
