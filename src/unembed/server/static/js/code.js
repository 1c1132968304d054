/** Write a Python program, or a command, that prints what the page shows. */
import { prompt } from "./parts.js";
import { activeEdits, idOf, parseId, state } from "./state.js";

/** Quote a text as one word of a shell command. */
export const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** Write a text as a Python string literal, with an escape for every character outside ASCII. */
export const literal = (text) =>
  JSON.stringify(text).replace(/[\u007f-\u{10ffff}]/gu, (c) => {
    const code = Number(c.codePointAt(0)).toString(16);
    return code.length > 4 ? `\\U${code.padStart(8, "0")}` : `\\u${code.padStart(4, "0")}`;
  });

const number = (x) => (Number.isInteger(x) ? `${x}.0` : String(x));

/** Write an edit as a Python call. */
export function editCall(e) {
  const where = Array.isArray(e.positions) ? `[${e.positions.join(", ")}]` : literal(e.positions);
  const coefficient = { set: "set_coefficient", scale: "scale_coefficient", add: "add_to_coefficient" };
  const name = e.target === "head" ? "scale_head" : coefficient[e.action];
  const positions = e.positions === "all" ? "" : `, positions=${where}`;
  return `unembed.${name}(${e.layer}, ${e.index}, ${number(e.value)}${positions})`;
}

/** Write a token of the address as a Python literal; there, `#17` is the token with id 17. */
const tokenOf = (text) => (/^#\d+$/.test(text) ? text.slice(1) : literal(text));

/** Whether `unembed.load` and the commands open this model when none is named. */
const isDefault = (model) => model.source === "wren";

/** The lines that make the trace and its question: the target, and the token that it is compared with. */
function traced(now, given) {
  const one = (text) => (text ? tokenOf(text) : "None");
  const chosen = now.token || now.against ? `${one(now.token)}, ${one(now.single ? "" : now.against)}, ` : "";
  const alone = now.single ? ", alone=True" : "";
  return [
    `trace = lm.trace(${literal(prompt())}${given})`,
    `question = trace.question(${chosen}position=${now.position || -1}${alone})`,
  ];
}
const ranking = (now, page) =>
  (now.sort === "effect" ? "" : `, order=${literal(now.sort)}`) + (page.model.can.index ? ", index=index" : "");

/** The lines of each screen after the model is loaded; `now`: the state; `given`: the edits as an argument. */
const LINES = {
  trace({ now, page, given }) {
    const position = now.position || "-1";
    const layer = now.layer === "" ? "-1" : now.layer;
    return [
      ...traced(now, given),
      `print(trace.readings().tokens[${layer}][${position}])`,
      now.by === "memory"
        ? `print(trace.memory_effects(question, ${position}, 20${ranking(now, page)}))`
        : `print(trace.attribution(question.token, ${position}, question.against, by=${literal(now.by)}))`,
    ];
  },
  layer({ now, page, given }) {
    const layer = now.layer === "" ? page.model.n_layers - 1 : now.layer;
    const position = now.position || "-1";
    const lines = traced(now, given);
    if (page.model.can.memories && now.part !== "heads")
      lines.push(`print(trace.memory_effects(question, ${position}, 20, layers=[${layer}]${ranking(now, page)}))`);
    if (now.part !== "ffn" || !page.model.can.memories)
      lines.push(`print(trace.head_updates(${layer}, ${position}, question.token, question.against))`);
    return lines;
  },
  memory({ now, page }) {
    const one = parseId(now.memory);
    if (!one) return ["print(lm)"];
    const lines = [`print(lm.values.top_tokens(${one.layer}, ${one.index}))`];
    return page.model.can.index ? [...lines, `print(index.triggers(${one.layer}, ${one.index}))`] : lines;
  },
  intervene({ now }) {
    const edits = activeEdits().length ? ", edits" : "";
    const seed = now.seed === "" ? "" : `, seed=${now.seed}`;
    return [`print(lm.generate(${literal(prompt())}${edits}, max_new_tokens=${now.new_tokens || 30}${seed})[0])`];
  },
  heads({ now, given }) {
    const one = parseId(now.head);
    const lines = ["circuits = unembed.circuits(lm)", "print(circuits.head_scores(seed=0, n_sequences=16, length=32))"];
    if (!one) return lines;
    return [
      ...lines,
      `print(circuits.head(${one.layer}, ${one.index}))`,
      `print(lm.run(${literal(prompt())}, ("pattern",)${given}).at("pattern", ${one.layer})[0, ${one.index}])`,
    ];
  },
  search({ now, page }) {
    const index = page.model.can.index ? "index" : "None";
    return [
      "from unembed.index.memory_search import search",
      "",
      `found = search(lm, ${index}, ${literal(now.query)})`,
      "for hit in found.hits:",
      "    print(hit.layer, hit.index, hit.why, repr(hit.found), hit.score, hit.top_tokens)",
    ];
  },
  label: ({ page }) => [page.model.can.index ? "print(index.labels())" : "print(lm)"],
};

/** Write the state as a Python program; `more`: the lines of a screen that the address does not describe in full. */
export function asPython(page, more) {
  const now = state();
  const edits = activeEdits();
  const given = edits.length ? ", edits=edits" : "";
  const body = more ?? (LINES[now.screen] ?? LINES.trace)({ now, page, given });
  const uses = (name) => body.some((line) => new RegExp(`\\b${name}\\b`).test(line));
  const lines = ["import unembed", "", `lm = unembed.load(${isDefault(page.model) ? "" : literal(page.model.source)})`];
  if (page.model.can.index && uses("index"))
    lines.push(`index = unembed.Index.open(${literal(page.model.index_path)}, lm)`);
  if (edits.length && uses("edits")) lines.push(`edits = [${edits.map(editCall).join(", ")}]`);
  return [...lines, ...body].join("\n");
}

/** Write the state as a command of `unembed`; where no command covers all of it, as one that runs the Python program. */
export function asCommand(page, more) {
  const program = `python - <<'EOF'\n${asPython(page, more)}\nEOF`;
  if (more) return program;
  const now = state();
  const model = isDefault(page.model) ? "" : ` --model ${shell(page.model.source)}`;
  const [memory, head] = [parseId(now.memory), parseId(now.head)];
  if (now.screen === "memory" && memory) return `unembed value ${idOf(memory)}${model}`;
  if (now.screen === "heads") return `unembed circuits ${head ? `head ${idOf(head, "head")}` : "heads"}${model}`;
  const edits = activeEdits();
  const plain =
    edits.every((e) => e.action === "set" && e.positions === "all") &&
    ![now.token, now.against].some((text) => text.startsWith("#"));
  if (!plain || !["trace", "layer"].includes(now.screen)) return program;
  const sets = edits.map((e) => ` --set ${idOf(e)}=${e.value}`).join("");
  const layer = now.screen === "layer" && now.layer !== "" ? ` --layer ${now.layer}` : "";
  const position = now.position === "" ? "" : ` --position ${now.position}`;
  const token = now.token ? ` --token ${shell(now.token)}` : "";
  const against = now.single ? " --against none" : now.against ? ` --against ${shell(now.against)}` : "";
  return `unembed trace${position}${layer}${token}${against}${sets}${model} -- ${shell(prompt())}`;
}
