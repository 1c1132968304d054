/** Memories found by the words that they promote or suppress, by their examples and labels; and concepts. */
import { button, fill, fixed, h, many, percent, places, segmented, selectBox, textBox } from "../dom.js";
import * as bars from "../islands/bars.js";
import { token, visible } from "../islands/tokens.js";
import { exportLabels } from "../labels.js";
import * as names from "../names.js";
import { about, card, empty, link, memoryLink, pane, table, toks, trail, waiting, written } from "../parts.js";
import { differ, edits, go, idOf, openCard, parseId, setEdits, state, turn } from "../state.js";

const SAMPLES = ["year", '"·the"', "-not", "*ing", "layer:3-5 house", 'ctx:"of the"', "name:city"];
/** Results of a page. */
const PAGE = 60;
const WHY = { promotes: "promotes", suppresses: "suppresses", trigger: "example", name: "label", memory: "id" };
/** Activation densities to choose from, and their bounds. */
const DENSITIES = [
  ["rare", "Rare: below 1 %", { density_below: 0.01 }],
  ["common", "1 % to 50 %", { density_above: 0.01, density_below: 0.5 }],
  ["always", "Nearly always on: above 50 %", { density_above: 0.5 }],
];
const NOTHING =
  "Try another form of the word, *part* for all tokens that contain it, /expression/ for a regular expression, " +
  "or a token above.";

export function render(root, page) {
  const { api, model } = page;
  let found = null;
  const filters = { layer: "", why: "", density: "", labelled: "" };
  const clearFilters = () =>
    Object.keys(filters).forEach((name) => {
      filters[name] = "";
    });
  const chosen = new Map();
  const input = h("input", {
    type: "search",
    "aria-label": "Search memories",
    placeholder: 'a word, -word, "·token", *part*, /expression/, ctx:"some words", name:label, layer:2-4, L4M17',
    style: { flex: 1 },
    oninput: typed,
    onkeydown: (e) => e.key === "Enter" && submit(),
  });
  const title = h("h1");
  const pieces = h("p.faint");
  const facets = h("div.row");
  const results = h("div.stack.found");
  const bulk = h("div.row");
  const joined = h("p.soft", { role: "status" });
  const known = h("datalist", { id: "known-concepts" });
  const concept = textBox("Concept", {
    placeholder: "a concept, old or new",
    list: known.id,
    onfocus: suggest,
    onkeydown: (e) => e.key === "Enter" && join(),
  });
  const who = names.authorBox();
  who.addEventListener("keydown", (e) => e.key === "Enter" && join());
  fill(root, [
    h("div.stack.bounded", [
      title,
      h("div.row", input, button("Search", submit, { class: "btn main" })),
      pieces,
      facets,
      bulk,
      joined,
      results,
    ]),
  ]);

  let timer = 0;
  function typed() {
    clearTimeout(timer);
    timer = setTimeout(submit, 90);
  }

  const named = () => (state().path[0] === "concept" ? state().path[1] : "");

  async function submit() {
    if (openCard(input.value)) return;
    clearFilters();
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
        : await api.get("/memories/search", query(), { channel: "search" });
      if (!name) return draw();
      for (const one of found.members) chosen.set(key(one), one);
      drawConcept();
    });
    settled();
  }

  async function tips() {
    const concepts = h("div.row");
    found = null;
    if (!model.can.memories)
      return void fill(results, [
        empty("This model has no memories to search", "A head, such as L0H1, opens its card.", [
          button("L0H1", () => ((input.value = "L0H1"), submit()), { class: "btn small" }),
        ]),
      ]);
    fill(results, [
      empty(
        "Find memories (FFN neurons) by words",
        written(h("span"), "words"),
        h("div.row", [SAMPLES.map((q) => button(q, () => ((input.value = q), submit()), { class: "btn small" }))]),
        concepts,
        !model.can.index &&
          h("p.faint", "No index is open: triggers and labels cannot be searched. unembed serve --index DIR"),
      ),
    ]);
    if (!model.can.index) return;
    await pane(concepts, async () => {
      const all = await listed();
      if (all.length)
        fill(concepts, [
          h("span.soft", "Concepts: "),
          all
            .slice(0, 20)
            .map((one) =>
              button(`${one.name} (${one.members})`, () => go({ path: ["concept", one.name] }), { class: "btn small" }),
            ),
        ]);
    });
  }

  function draw() {
    fill(pieces, [
      Object.entries(found.tokens).map(([word, parts]) => {
        const forms = found.forms[word];
        const split = [many(parts.length, "token"), ": ", parts.map(piece)];
        return h("p", [
          forms.length
            ? [`“${visible(word)}” is searched as `, forms.map(piece)]
            : [`No form of “${visible(word)}” is one token. It is `, split],
          forms.length > 0 && parts.length > 1 && ["; without a space before it, it is ", split],
          ".",
        ]);
      }),
    ]);
    drawFacets();
    rows();
  }

  /** A button that searches another token. */
  const piece = (text) =>
    button([token(text)], () => lookUp(exactly(text)), { class: "quiet", title: `Search ${visible(text)} alone` });

  /** A query that finds exactly one token. */
  const exactly = (text) => `"${text.replaceAll(" ", "·")}"`;

  /** Promotes or suppresses: for a query of one word, whose sign is its first character. */
  function signs() {
    const [, minus, word] = /^\s*(-?)("[^"]*"|[^\s:*/]+)\s*$/.exec(state().query) ?? [];
    if (!word || parseId(word)) return null;
    const options = [
      ["", "Promotes"],
      ["-", "Suppresses"],
    ];
    return segmented("Sign", options, minus, (sign) => lookUp(sign + word));
  }

  function lookUp(query) {
    input.value = query;
    return submit();
  }

  /** Filters; the server applies them to all results, not only to this page. */
  function drawFacets() {
    const all = Object.values(found.layers).reduce((sum, n) => sum + n, 0);
    const counted = Object.entries(found.layers).map(([n, hits]) => [n, `Layer ${n} (${hits})`]);
    const reasons = Object.entries(found.reasons).map(([why, hits]) => [why, `${WHY[why] ?? why} (${hits})`]);
    const choice = (label, name, options) =>
      selectBox(label, options, filters[name], {
        onchange: (e) => {
          filters[name] = e.target.value;
          show();
        },
      });
    fill(facets, [
      signs(),
      all > 0 && [
        choice("Layer", "layer", [["", "All layers"], ...counted]),
        reasons.length > 1 && choice("Found by", "why", [["", "Found by any part"], ...reasons]),
        model.can.index && [
          choice("Activation density", "density", [
            ["", "Any activation density"],
            ...DENSITIES.map(([n, text]) => [n, text]),
          ]),
          choice("Labels", "labelled", [
            ["", "With and without labels"],
            ["true", "Labelled"],
            ["false", "Not labelled"],
          ]),
        ],
        Object.values(filters).some(Boolean) &&
          button("Clear filters", () => (clearFilters(), show()), { class: "quiet" }),
      ],
    ]);
  }

  function rows() {
    const { hits, total } = found;
    trail.splice(0, Infinity, ...hits.filter((x) => x.of !== "head").map((x) => idOf(x)));
    const digits = places(hits.map((x) => x.score));
    const what = hits.some((x) => x.of === "head") ? "memories and heads" : total === 1 ? "memory" : "memories";
    fill(results, [
      found.notes.map((n) => h("p.warn", n)),
      found.suggestions.length > 0 &&
        h("p", [
          "Similar tokens: ",
          found.suggestions.map((text) => button([token(text)], () => lookUp(exactly(text)), { class: "btn small" })),
        ]),
      hits.length
        ? table(
            [
              tickAll(hits.filter((x) => x.of !== "head")),
              "memory",
              "found by",
              "match",
              "rank",
              "score",
              "density",
              "top tokens",
            ],
            hits.map((x) => [
              x.of === "head" ? "" : tick(x),
              link(x, x.of),
              h("span.tag", WHY[x.why] ?? x.why),
              h("span.context", { dir: "auto" }, [
                [x.found, ...x.also.slice(0, 3)].map((text, i) => [
                  i > 0 && " ",
                  x.why === "trigger" || x.why === "name" ? text : token(text),
                ]),
                x.also.length > 3 && h("span.faint", ` and ${x.also.length - 3} more`),
              ]),
              x.rank ?? "",
              Number.isFinite(x.score) ? h("td.n", fixed(x.score, digits)) : "",
              x.density === null ? "" : h("td.n", percent(x.density)),
              toks(x.top_tokens),
            ]),
            hits.length < total
              ? `${total.toLocaleString("en")} ${what}, ${hits.length.toLocaleString("en")} of them shown`
              : `${total.toLocaleString("en")} ${what}`,
          )
        : empty(
            "Nothing found",
            NOTHING,
            Object.values(filters).some(Boolean) && h("p", "The filters may hide results."),
          ),
      hits.some((x) => x.why === "promotes" || x.why === "suppresses") &&
        h("p.faint", [
          hits.some((x) => x.rank !== null && x.why === "promotes")
            ? "Exact: every memory that has the token among the top tokens that the index lists."
            : "Exact: all values are scored, and the first 1,000 are listed.",
        ]),
      hits.length < total &&
        button(`Show ${Math.min(PAGE, total - hits.length)} more`, more, { class: "btn", "aria-describedby": "shown" }),
    ]);
    tools();
  }

  /** The next page, after what is shown. */
  const more = () =>
    pane(results, async () => {
      const next = await api.get("/memories/search", query(found.hits.length), { channel: "search" });
      found = { ...next, hits: [...found.hits, ...next.hits] };
      rows();
    });

  /** The parameters of the request: query, filters and page. */
  const query = (offset = 0) => {
    const { layer, why, labelled, density } = filters;
    const bounds = DENSITIES.find(([name]) => name === density)?.[2] ?? {};
    return { q: state().query, top: PAGE, offset: offset || "", layer, why, labelled, ...bounds };
  };

  /** All memories with one label: shared tokens, layers, and agreement of annotators. */
  function drawConcept() {
    const { members, tokens, by_layer: counts, agreement } = found;
    const layers = h("div");
    bars.mount(layers, { rows: counts.map((n, i) => ({ label: `Layer ${i}`, value: n, text: String(n) })) });
    fill(results, [
      h("p.soft", [
        agreement === null
          ? "No member has labels of several annotators."
          : `Agreement over the members with several annotators: ${percent(agreement)}.`,
      ]),
      h("div.two", [
        card("Tokens that members share", null, [
          tokens.length
            ? tokens.map(([t, n]) => [token(t), h("small.faint", ` ${n}  `)])
            : h("p.faint", "None among their 30 top tokens."),
        ]),
        card("Over the layers", null, layers),
      ]),
      table(
        [tickAll(members), "memory", "labelled by", "annotators", "top tokens"],
        members.map((x) => [tick(x), memoryLink(x), x.authors.join(", "), x.annotators, toks(x.top_tokens)]),
        `${members.length} ${members.length === 1 ? "memory" : "memories"}`,
      ),
      about("concept"),
    ]);
    tools();
  }

  const key = (x) => `${x.layer}.${x.index}`;
  const tick = (x) =>
    h("input", {
      type: "checkbox",
      checked: chosen.has(key(x)),
      "aria-label": `Choose ${idOf(x)}`,
      onchange: (e) => (e.target.checked ? chosen.set(key(x), x) : chosen.delete(key(x)), tools()),
    });

  /** Tick or untick all rows shown. */
  function tickAll(list) {
    const set = (on) => {
      for (const x of list) on ? chosen.set(key(x), x) : chosen.delete(key(x));
      named() ? drawConcept() : rows();
      /** @type {HTMLElement | null} */ (results.querySelector("thead input"))?.focus();
    };
    return h("input", {
      type: "checkbox",
      checked: list.length > 0 && list.every((x) => chosen.has(key(x))),
      "aria-label": `Choose all ${list.length} shown`,
      title: `Choose all ${list.length} shown`,
      onchange: (e) => set(e.target.checked),
    });
  }

  /** Add all ticked memories to the edits, as one step of undo. */
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
    fill(bulk, [
      chosen.size > 0 && [
        h("span.soft", `${chosen.size} chosen`),
        button("Switch off", () => all("scale", 0), { class: "btn small" }),
        button("Double", () => all("scale", 2), { class: "btn small" }),
        button("Set to 3", () => all("set", 3), { class: "btn small" }),
        model.can.index && [concept, known, who, button("Add to concept", join, { class: "btn small" })],
        button("Clear", () => (chosen.clear(), named() ? drawConcept() : rows()), { class: "quiet" }),
      ],
    ]);
  }

  const listed = async () => (await api.get("/concepts", {}, { fresh: true })).concepts;
  function suggest() {
    listed().then((all) => fill(known, [all.map((one) => h("option", { value: one.name }))]), api.fail);
  }

  /** Reload what shows labels, after some were written or withdrawn. */
  async function relabelled() {
    await names.load();
    api.forget("/memories/search");
    if (named()) await show();
    else rows();
  }

  /** Give all ticked memories one label; it can be undone. */
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
      fill(joined, [
        `${ids.length} added to ${name}${before ? `, ${before} were there` : ""}. `,
        button("Open", () => go({ path: ["concept", name] }), { class: "quiet" }),
        button("Export all labels", exportLabels, { class: "quiet" }),
        ids.length > 0 &&
          button(
            "Undo",
            async () => {
              await names.withdraw(ids, author);
              await relabelled();
              fill(joined, "Withdrawn.");
            },
            { class: "quiet" },
          ),
      ]);
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
