/** What notebooks draw: an element, the data of a result, and what to call when something is chosen. */
function draw(el, data, chosen) {
  el.classList.add("unembed", "unembed-out");
  if (data.schema === "unembed.emergence/1") return drawTrace(el, data, chosen);
  return drawAccount(el, data, chosen);
}

function drawTrace(el, data, chosen) {
  const { visible } = islands.tokens;
  const stage = data.stages[data.stages.length - 1];
  const n = stage.ids.length;
  const said = (p) => (p >= 0.1 ? `${Math.round(p * 100)} %` : `${(p * 100).toFixed(1)} %`);
  const rows = [];
  for (let layer = 0; layer < n; layer++) {
    const below = rows[0];
    rows.unshift({
      n: layer,
      label: `Layer ${layer}`,
      cells: data.tokens.map((t, p) => {
        const id = stage.ids[layer][p][0];
        const event = data.events.find((e) => e.layer === layer && e.position === p);
        return {
          id,
          text: data.texts[id],
          q: Math.round(16 * Math.sqrt(stage.probabilities[layer][p][0])),
          cls: id === data.prediction[p] ? "answer" : "",
          glyph: event ? (event.kind === "saturation" ? "◆" : "✕") : "",
          same: !!below && below.cells[p].id === id && !event && layer < n - 1,
          name: `Layer ${layer}, position ${p} ${visible(t.token)}: first ${visible(data.texts[id])} ${said(stage.probabilities[layer][p][0])}, answer at place ${stage.rank_of_prediction[layer][p] + 1}`,
        };
      }),
    });
  }
  const host = document.createElement("div");
  const note = document.createElement("p");
  note.className = "bar-number";
  el.replaceChildren(host, note);
  const island = islands.grid.mount(host, { rows, columns: data.tokens.map((t) => ({ text: t.token })), corner: "layer \\ token" }, {
    label: "Most likely next token after every layer and position",
    onselect: (r, c) => {
      const one = rows[r];
      note.textContent = stage.ids[one.n][c].map((id, k) => `${visible(data.texts[id])} ${said(stage.probabilities[one.n][c][k])}`).join("   ");
      chosen?.({ layer: one.n, position: c });
    },
  });
  note.textContent = `${data.model} · ${data.sizes}`;
  return island;
}

function drawAccount(el, data, chosen) {
  const host = document.createElement("div");
  const note = document.createElement("p");
  note.textContent = data.note;
  el.replaceChildren(host, note);
  const rows = data.rows.map((row) => ({ label: row.label, value: row.share, text: (row.share < 0 ? "−" : "+") + Math.abs(row.share).toPrecision(3), row }));
  return islands.bars.mount(host, { rows, signed: true }, { onpick: ({ row }) => chosen?.({ label: row.label, layer: row.layer, index: row.index }) });
}
