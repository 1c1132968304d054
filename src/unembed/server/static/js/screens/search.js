/** Memories found by words: what they promote or suppress, what sets them off, what people call them; and concepts. */
import { button, fill, h, percent, segmented, textBox } from "../dom.js";
import * as bars from "../islands/bars.js";
import { token, visible } from "../islands/tokens.js";
import * as names from "../names.js";
import { about, card, empty, link, memoryLink, pane, table, toks, trail, waiting, written } from "../parts.js";
import { differ, edits, go, idOf, setEdits, state, turn } from "../state.js";

const SAMPLES = ["year", '"·the"', "-not", "layer:3-5 house", 'ctx:"of the"', "name:city"];

export function render(root, page) {
  const { api, model } = page;
  let found = null;
  let layer = "";
  const chosen = new Map();
  const input = h("input", {
    type: "search",
    "aria-label": "Search memories",
    placeholder: 'a word, -word, "·token", ctx:"some words", name:label, layer:2-4, L4M17',
    style: { flex: 1 },
    oninput: typed,
    onkeydown: (e) => e.key === "Enter" && ask(),
  });
  const title = h("h1");
  const pieces = h("p", { class: "faint" });
  const facets = h("div", { class: "row" });
  const results = h("div", { class: "stack" });
  const bulk = h("div", { class: "row" });
  const joined = h("p", { class: "soft", role: "status" });
  const known = h("datalist", { id: "known-concepts" });
  const concept = textBox("Concept", {
    placeholder: "a concept, old or new",
    list: known.id,
    onfocus: suggest,
    onkeydown: (e) => e.key === "Enter" && join(),
  });
  const who = names.authorBox();
  fill(
    root,
    h(
      "div",
      { class: "stack" },
      title,
      h("div", { class: "row" }, input, button("Search", ask, { class: "btn main" })),
      pieces,
      facets,
      bulk,
      joined,
      results,
    ),
  );

  let timer = 0;
  function typed() {
    clearTimeout(timer);
    timer = setTimeout(ask, 90);
  }

  const named = () => (state().path[0] === "concept" ? state().path[1] : "");

  async function ask() {
    turn({ query: input.value, path: [] });
    await show();
  }

  async function show() {
    const name = named();
    title.textContent = name ? `Concept: ${name}` : "Search";
    for (const el of [pieces, facets, bulk, joined]) fill(el);
    chosen.clear();
    if (!name && !state().query.trim()) return tips();
    const settled = waiting(results);
    await pane(results, async () => {
      found = name
        ? await api.get(`/concepts/${encodeURIComponent(name)}`, {}, { channel: "search", fresh: true })
        : await api.get("/memories/search", { q: state().query, top: 60 }, { channel: "search" });
      if (!name) return draw();
      for (const one of found.members) chosen.set(key(one), one);
      drawConcept();
    });
    settled();
  }

  async function tips() {
    const concepts = h("div", { class: "row" });
    found = null;
    fill(
      results,
      empty(
        "Find memories by words",
        written(h("span"), "words"),
        h(
          "div",
          { class: "row" },
          SAMPLES.map((q) => button(q, () => ((input.value = q), ask()), { class: "btn small" })),
        ),
        concepts,
        !model.can.index &&
          h(
            "p",
            { class: "faint" },
            "No index is open: triggers and labels cannot be searched. unembed serve --index DIR",
          ),
      ),
    );
    if (!model.can.index) return;
    await pane(concepts, async () => {
      const all = await listed();
      if (all.length)
        fill(
          concepts,
          h("span", { class: "soft" }, "Concepts: "),
          all
            .slice(0, 20)
            .map((one) =>
              button(`${one.name} (${one.members})`, () => go({ path: ["concept", one.name] }), { class: "btn small" }),
            ),
        );
    });
  }

  function draw() {
    fill(
      pieces,
      Object.entries(found.tokens).map(([word, parts]) =>
        h("span", {}, `${visible(word)} is `, toks(parts, 99), parts.length > 1 ? "(several tokens) " : ""),
      ),
    );
    const layers = [...new Set(found.hits.map((x) => x.layer))].sort((a, b) => a - b);
    fill(
      facets,
      found.hits.length > 0 &&
        segmented(
          "Layer",
          [["", "All layers"], ...layers.map((n) => [String(n), `L${n}`])],
          layer,
          (v) => ((layer = v), rows()),
        ),
    );
    rows();
  }

  function rows() {
    const hits = found.hits.filter((x) => layer === "" || x.layer === Number(layer));
    trail.splice(0, Infinity, ...hits.filter((x) => x.of !== "head").map((x) => idOf(x)));
    fill(
      results,
      found.notes.map((n) => h("p", { class: "warn" }, n)),
      hits.length
        ? table(
            ["", "memory", "found by", "match", "rank", "score", "top tokens"],
            hits.map((x) => [
              x.of === "head" ? "" : tick(x),
              link(x, x.of),
              h("span", { class: "tag" }, x.why),
              h(
                "span",
                { class: "context", dir: "auto" },
                x.why === "trigger" || x.why === "name" ? x.found : token(x.found),
              ),
              x.rank ?? "",
              x.score ?? "",
              toks(x.top_tokens),
            ]),
            `${hits.length} ${hits.some((x) => x.of === "head") ? "memories and heads" : "memories"}`,
          )
        : !found.notes.length &&
            empty("Nothing found", "Try another form of the word, or look how it is split into tokens above."),
    );
    tools();
  }

  /** All that people gave one name: what it shares, over which layers, who agrees. */
  function drawConcept() {
    const { members, tokens, by_layer: counts, agreement } = found;
    const layers = h("div");
    bars.mount(layers, { rows: counts.map((n, i) => ({ label: `Layer ${i}`, value: n, text: String(n) })) });
    fill(
      results,
      h(
        "p",
        { class: "soft" },
        agreement === null
          ? "No member has been looked at by several people."
          : `Of members that several people looked at, ${percent(agreement)} of them say the same.`,
      ),
      h(
        "div",
        { class: "two" },
        card(
          "Tokens that members share",
          null,
          tokens.length
            ? tokens.map(([t, n]) => [token(t), h("small", { class: "faint" }, ` ${n}  `)])
            : h("p", { class: "faint" }, "None among their 30 top tokens."),
        ),
        card("Over the layers", null, layers),
      ),
      table(
        ["", "memory", "named so by", "of", "top tokens"],
        members.map((x) => [tick(x), memoryLink(x), x.authors.join(", "), x.annotators, toks(x.top_tokens)]),
        `${members.length} memories`,
      ),
      about("concept"),
    );
    tools();
  }

  const key = (x) => `${x.layer}.${x.index}`;
  const tick = (x) =>
    h("input", {
      type: "checkbox",
      checked: chosen.has(key(x)),
      "aria-label": `Choose L${x.layer}M${x.index}`,
      onchange: (e) => (e.target.checked ? chosen.set(key(x), x) : chosen.delete(key(x)), tools()),
    });

  /** One step puts all chosen memories into the edits. */
  function tools() {
    const all = (action, value) => {
      const taken = edits().filter((e) => !chosen.has(key(e)) || e.target === "head");
      setEdits([
        ...taken,
        ...[...chosen.values()].map(({ layer: l, index }) => ({
          target: "coefficient",
          layer: l,
          index,
          action,
          value,
          positions: "all",
          on: true,
        })),
      ]);
    };
    fill(
      bulk,
      chosen.size > 0 && [
        h("span", { class: "soft" }, `${chosen.size} chosen`),
        button("Switch off", () => all("scale", 0), { class: "btn small" }),
        button("Double", () => all("scale", 2), { class: "btn small" }),
        button("Set to 3", () => all("set", 3), { class: "btn small" }),
        model.can.index && [concept, known, who, button("Add to concept", join, { class: "btn small" })],
        button("Clear", () => (chosen.clear(), named() ? drawConcept() : rows()), { class: "quiet" }),
      ],
    );
  }

  const listed = async () => (await api.get("/concepts", {}, { fresh: true })).concepts;
  function suggest() {
    listed().then(
      (all) =>
        fill(
          known,
          all.map((one) => h("option", { value: one.name })),
        ),
      api.fail,
    );
  }

  /** Labels were written or withdrawn: what shows them is read again. */
  async function relabelled() {
    await names.load();
    api.forget("/memories/search");
    if (named()) await show();
    else rows();
  }

  /** All chosen memories get a label of one name, which can be taken back. */
  async function join() {
    const [name, author] = [concept.value.trim(), who.value.trim()];
    if (!name || !author) return (name ? who : concept).focus();
    try {
      const { ids, known: before } = await api.send("/concepts", {
        name,
        author,
        members: [...chosen.values()].map(({ layer: l, index }) => ({ layer: l, index })),
      });
      await relabelled();
      fill(
        joined,
        `${ids.length} added to ${name}${before ? `, ${before} were there` : ""}. `,
        button("Open", () => go({ path: ["concept", name] }), { class: "quiet" }),
        ids.length > 0 &&
          button(
            "Undo",
            async () => {
              await names.withdraw(ids, author);
              await relabelled();
              fill(joined, "Taken back.");
            },
            { class: "quiet" },
          ),
      );
    } catch (error) {
      api.fail(error);
    }
  }

  return {
    update(now, before) {
      const opened = before.screen !== now.screen;
      if (!differ(now, before, "screen", "query") && now.path[1] === before.path[1]) return;
      if (document.activeElement !== input) input.value = now.query;
      if (opened && !named()) input.focus();
      if (opened || document.activeElement !== input || named()) return show();
    },
    exported: () =>
      found &&
      (found.hits
        ? {
            name: "search",
            json: found,
            rows: [
              ["of", "layer", "index", "why", "found", "rank", "score", "top_tokens"],
              ...found.hits.map((x) => [
                x.of,
                x.layer,
                x.index,
                x.why,
                x.found,
                x.rank ?? "",
                x.score ?? "",
                JSON.stringify(x.top_tokens),
              ]),
            ],
          }
        : {
            name: "concept",
            json: found,
            rows: [
              ["layer", "index", "authors", "annotators", "top_tokens"],
              ...found.members.map((x) => [
                x.layer,
                x.index,
                x.authors.join("; "),
                x.annotators,
                JSON.stringify(x.top_tokens),
              ]),
            ],
          }),
  };
}
