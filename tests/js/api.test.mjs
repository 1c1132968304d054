/** Requests: cached, replaced by newer ones, streamed, and failing in words. */
import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { module } from "./page.mjs";

const api = await module("api.js");
const asked = [];

/** Let the server answer as `answer(path)` says. */
function serve(answer) {
  globalThis.fetch = (path, { signal }) =>
    new Promise((done, fail) => {
      asked.push(path);
      signal.addEventListener("abort", () => fail(Object.assign(new Error(), { name: "AbortError" })));
      Promise.resolve(answer(path)).then(done, fail);
    });
}
const json = (body, status = 200) => new Response(JSON.stringify(body), { status });

afterEach(() => {
  asked.length = 0;
  api.forget("");
});

test("a response is cached by its path and parameters, unless it must be fresh", async () => {
  serve(() => json({ n: asked.length }));
  assert.deepEqual(await api.get("/a", { x: 1, none: "", list: [1, 2] }), { n: 1 });
  assert.equal(asked[0], "api/v1/a?x=1&list=1&list=2");
  assert.deepEqual(await api.get("/a", { x: 1, list: [1, 2] }), { n: 1 });
  assert.deepEqual(await api.get("/a", { x: 2 }), { n: 2 });
  assert.deepEqual(await api.get("/a", { x: 2 }, { fresh: true }), { n: 3 });
});

test("a newer request of a channel replaces the older one, and other channels go on", async () => {
  let answer = null;
  serve((path) => (path.endsWith("slow") ? new Promise((done) => (answer = done)) : json({ path })));
  const [slow, other] = [api.get("/slow", {}, { channel: "one" }), api.get("/other", {}, { channel: "two" })];
  assert.deepEqual(await api.get("/fast", {}, { channel: "one" }), { path: "api/v1/fast" });
  answer(json({}));
  await assert.rejects(slow, { code: "superseded" });
  assert.deepEqual(await other, { path: "api/v1/other" });
});

test("a failure has the server's code and words, or says that there is no server", async () => {
  serve(() => json({ code: "out_of_range", message: "no layer 9", fix: "Use 0 to 5" }, 404));
  await assert.rejects(api.get("/layers/9"), {
    code: "out_of_range",
    message: "no layer 9",
    fix: "Use 0 to 5",
    status: 404,
  });
  serve(() => new Response("<html>", { status: 502 }));
  await assert.rejects(api.get("/any"), { code: "http", message: "the server answered 502" });
  serve(() => Promise.reject(new TypeError("refused")));
  await assert.rejects(api.get("/any"), { code: "away" });
});

test("a stream is read line by line, and one that ends too early is a failure", async () => {
  const lines = [];
  const text = '{"kind":"a"}\n{"kind":"b","text":"é"}\n';
  serve(() => new Response(`${text}{"kind":"done"}\n`));
  await api.stream("/s", {}, (line) => lines.push(line.kind));
  assert.deepEqual(lines, ["a", "b"]);
  serve(() => new Response(text));
  await assert.rejects(
    api.stream("/s", {}, () => {}),
    { code: "cut" },
  );
  serve(() => new Response('{"kind":"error","code":"invalid","message":"no"}\n'));
  await assert.rejects(
    api.stream("/s", {}, () => {}),
    { code: "invalid" },
  );
});
