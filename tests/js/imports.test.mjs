/** No module of the page imports itself by way of others. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../src/unembed/server/static/js", import.meta.url));

/** The modules that each module imports when it is loaded. */
const found = new Map(
  readdirSync(ROOT, { recursive: true })
    .map(String)
    .filter((name) => name.endsWith(".js"))
    .map((name) => {
      const text = readFileSync(join(ROOT, name), "utf8");
      return [name, [...text.matchAll(/from "(\.[^"]+)"/g)].map(([, path]) => normalize(join(dirname(name), path)))];
    }),
);

/** A circle that begins at the end of a path, or null. */
function circle(imports, path, done) {
  const name = path.at(-1);
  if (done.has(name)) return null;
  for (const next of imports.get(name)) {
    if (path.includes(next)) return [...path.slice(path.indexOf(next)), next];
    const inside = circle(imports, [...path, next], done);
    if (inside) return inside;
  }
  done.add(name);
  return null;
}

const circles = (imports) => {
  const done = new Set();
  return [...imports.keys()].map((name) => circle(imports, [name], done)).find(Boolean) ?? null;
};

test("modules import in one direction", () => {
  assert.ok(found.size > 80);
  assert.equal(circles(found), null);
});

test("a circle is noticed", () => {
  const imports = new Map(Object.entries({ "a.js": ["b.js"], "b.js": ["c.js"], "c.js": ["a.js"] }));
  assert.deepEqual(circles(imports), ["a.js", "b.js", "c.js", "a.js"]);
});
