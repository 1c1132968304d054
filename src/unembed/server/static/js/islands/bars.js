/**
 * Bars: one list of labelled bars on one scale, to the right for positive numbers and to the left for negative ones.
 *
 * mount(el, {rows: [{label, value, text, title, cls}], signed}, {onpick}) -> {update, destroy}
 *   `label` is a text or a node; `text` is the number as shown.
 */
export function mount(el, data, options = {}) {
  const update = (next) => {
    const most = Math.max(...next.rows.map((row) => Math.abs(row.value)), 1e-12);
    const list = document.createElement("ol");
    list.className = next.signed ? "bars signed" : "bars";
    next.rows.forEach((row, i) => {
      const item = document.createElement("li");
      if (row.cls) item.className = row.cls;
      const host = document.createElement(options.onpick && row.pick !== false ? "button" : "div");
      host.className = "bar-row";
      if (options.onpick && row.pick !== false) {
        host.type = "button";
        host.addEventListener("click", () => options.onpick(row, i));
      }
      if (row.title) host.title = row.title;
      const label = document.createElement("span");
      label.className = "bar-label";
      label.append(row.label);
      const track = document.createElement("span");
      track.className = "bar-track";
      const bar = document.createElement("span");
      bar.className = row.value < 0 ? "bar minus" : "bar plus";
      const share = (Math.abs(row.value) / most) * (next.signed ? 50 : 100);
      bar.style.width = `${share}%`;
      if (next.signed) bar.style[row.value < 0 ? "right" : "left"] = "50%";
      track.append(bar);
      const number = document.createElement("span");
      number.className = "bar-number";
      number.textContent = row.text;
      host.append(label, track, number);
      item.append(host);
      list.append(item);
    });
    el.replaceChildren(list);
  };
  update(data);
  return { update, destroy: () => el.replaceChildren() };
}
