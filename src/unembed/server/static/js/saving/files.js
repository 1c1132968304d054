/** Save a figure as one HTML page, or as pixels. */
import { h } from "../islands/nodes.js";

const STYLE =
  "body{margin:20px auto;max-width:1600px;padding:0 20px;font:14px/1.5 system-ui,sans-serif;color:#1b1e24}" +
  "svg{max-width:100%;height:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}" +
  "th,td{text-align:left;padding:2px 12px 2px 0;border-bottom:1px solid #ddd;white-space:pre}";

const escaped = (text) => h("p", { text }).innerHTML;

/** The screen as an HTML page with the figure, its numbers and their provenance, without scripts or requests. */
export function asPage({ text, title }, rows, origin) {
  const row = (tag) => (cells) => `<tr>${cells.map((x) => `<${tag}>${escaped(String(x))}</${tag}>`).join("")}</tr>`;
  const folded = (summary, body) => `<details><summary>${summary}</summary>${body}</details>`;
  const table = () =>
    `<table><thead>${row("th")(rows[0])}</thead><tbody>${rows.slice(1).map(row("td")).join("")}</tbody></table>`;
  const numbers = rows ? folded("The numbers", table()) : "";
  const from = folded("Where it comes from", `<pre>${escaped(JSON.stringify(origin, null, 1))}</pre>`);
  return (
    `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>${escaped(title)}</title>` +
    `<style>${STYLE}</style></head><body>${text}${numbers}${from}</body></html>`
  );
}

/** Draw a figure in pixels, at twice the screen's resolution. */
export async function asPng({ text, width, height }) {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  await image.decode();
  const scale = Math.min(2, 16_000 / Math.max(width, height), Math.sqrt(120e6 / (width * height)));
  const canvas = h("canvas");
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  return new Promise((done) => canvas.toBlob(done));
}
