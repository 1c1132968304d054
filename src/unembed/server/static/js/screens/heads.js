import { fill, h } from "../dom.js";
export function render(root) { fill(root, h("div", { class: "empty" }, h("h1", {}, "Not here yet"))); return { update() {} }; }
