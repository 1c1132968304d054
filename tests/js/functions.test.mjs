/** No function of the page is longer than 60 lines: the linter, which counts without the braces, refuses it. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));
const { complexity } = JSON.parse(readFileSync(join(root, "biome.json"), "utf8")).linter.rules;
const RULE = { noExcessiveLinesPerFunction: complexity.noExcessiveLinesPerFunction };

/** Whether the rule, alone, accepts a folder. */
function accepts(folder) {
  const config = mkdtempSync(join(tmpdir(), "biome-"));
  try {
    const rules = { recommended: false, complexity: RULE };
    writeFileSync(join(config, "biome.json"), JSON.stringify({ linter: { rules } }));
    const biome = join(root, "node_modules", ".bin", "biome");
    const { status } = spawnSync(biome, ["lint", `--config-path=${config}`, folder], { encoding: "utf8" });
    return status === 0;
  } finally {
    rmSync(config, { recursive: true });
  }
}

test("no function is longer than 60 lines", () => {
  assert.equal(RULE.noExcessiveLinesPerFunction.options.maxLines, 58);
  assert.ok(accepts(join(root, "src/unembed/server/static/js")));
});

test("a function of 61 lines is refused", () => {
  const folder = mkdtempSync(join(tmpdir(), "long-"));
  try {
    const long = (n) => `export function long(x) {\n${"  x += 1;\n".repeat(n - 3)}  return x;\n}\n`;
    writeFileSync(join(folder, "long.js"), long(60));
    assert.ok(accepts(folder));
    writeFileSync(join(folder, "long.js"), long(61));
    assert.ok(!accepts(folder));
  } finally {
    rmSync(folder, { recursive: true });
  }
});
