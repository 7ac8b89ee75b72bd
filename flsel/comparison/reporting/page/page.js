"use strict";
// Fills the charts' specifications with the rows that are chosen; Vega-Lite draws them as SVG.
(() => {
  const page = JSON.parse(document.getElementById("page-data").textContent);
  // Rows come by column, words by number.
  const unpacked = (table) => Array.from({ length: table.size }, (_, at) => {
    const row = {};
    for (const [name, column] of Object.entries(table.columns)) {
      const cell = column.words ? column.words[column.at[at]] : column[at];
      if (cell !== null) row[name] = cell;
    }
    return row;
  });
  const data = Object.fromEntries(Object.entries(page.data).map(([name, table]) => [name, unpacked(table)]));
  const value = (id) => { const e = document.getElementById(id); return e ? e.value : null; };
  const shown = () => new Set(
    [...document.querySelectorAll("input[name=variant]:checked")].map((box) => box.value));

  // Replaces $cost, $measure and $what, in field names by the name, in titles by the words.
  const filled = (part, names) => {
    if (Array.isArray(part)) return part.map((item) => filled(item, names));
    if (part && typeof part === "object") {
      return Object.fromEntries(Object.entries(part).map(([key, item]) =>
        [key, typeof item === "string" && key === "title" ? (Object.hasOwn(names.words, item) ? names.words[item] : item) : filled(item, names)]));
    }
    if (typeof part !== "string") return part;
    return part.replace("$cost", names.cost).replace("$measure", names.measure)
      .replace("$format", names.format).replace("$share", names.share);
  };

  const front = (rows, cost) => rows.map((row) => ({ ...row, front: !rows.some((other) =>
    other[cost] <= row[cost] && page.sign * (other.score - row.score) >= 0 &&
    (other[cost] < row[cost] || other.score !== row.score)) }));

  // More variants than a reader tells apart in one panel are drawn in several, the baseline in each.
  const paneled = (rows) => {
    const others = [...new Set(rows.map((row) => row.variant))].filter((name) => name && name !== page.baseline);
    if (others.length < page.panel) return [rows, null];
    const size = Math.ceil(others.length / Math.ceil(others.length / (page.panel - 2)));
    const titles = [];
    for (let at = 0; at < others.length; at += size) {
      titles.push(`${others[at]} to ${others[Math.min(at + size, others.length) - 1]}`);
    }
    const title = (name) => titles[Math.floor(others.indexOf(name) / size)];
    return [rows.flatMap((row) => row.variant === page.baseline ? titles.map((panel) => ({ ...row, panel })) :
      [{ ...row, panel: title(row.variant) }]), titles];
  };
  const inPanels = (place, spec, titles) => {
    const columns = place.clientWidth > 480 ? 2 : 1, { height, ...rest } = spec;
    const spacing = 30, width = (place.clientWidth - 75 - spacing * (columns - 1)) / columns;
    return { columns, spacing, facet: { field: "panel", type: "nominal", sort: titles, title: null },
      spec: { ...rest, height: Math.min(height, 220), width } };
  };

  const draw = async (chart) => {
    const place = document.getElementById(`chart-${chart.name}`);
    const scenario = value("scenario") ?? page.scenarios[0], chosen = shown();
    const one = chart.one ? value(`one-${chart.name}`) : null;
    const kept = (rows) => rows.filter((row) => (!row.scenario || row.scenario === scenario) &&
      (one ? row.variant === one : !row.variant || chosen.has(row.variant)));
    let cost = value("cost") ?? "rounds", rows = kept(data[chart.name]);
    // All variants execute the same rounds: accuracy against them says nothing.
    if (chart.name === "cost" && cost === "rounds" && rows.some((row) => "bytes" in row)) cost = "bytes";
    if (chart.name === "cost") rows = front(rows, cost);
    const measure = value("measure") ?? "accuracy";
    // Bytes with prefixes; of seconds "500m" would be read as minutes.
    const names = { cost, measure, format: page.formats[cost], share: measure === "accuracy" ? "%" : "~r", words: {
      $cost: page.words[cost], $measure: page.words[measure], $what: rows.length ? rows[0].what : "" } };
    const spec = filled(chart.spec, names);
    const lines = new Set(rows.map((row) => row.variant)).size;
    if (spec.height.step) spec.height = spec.height.step * Math.max(lines, 1) + 10;
    const datasets = chart.name === "pairs" ? { intervals: kept(data.intervals ?? []) } : {};
    const panels = chart.spec.height.step || one ? [rows, null] : paneled(rows);
    const shape = panels[1] ? inPanels(place, spec, panels[1]) :
      { width: "container", autosize: { type: "fit-x", contains: "padding" }, ...spec };
    const whole = { $schema: "https://vega.github.io/schema/vega-lite/v6.json", background: null,
      data: { values: panels[0] }, datasets, ...shape, config: page.config };
    place.setAttribute("aria-busy", "true");
    const made = await vegaEmbed(place, whole, { renderer: "svg", actions: false, logLevel: 1, tooltip: { theme: "custom" } });
    place.querySelector("svg").setAttribute("aria-label", chart.title);
    place.setAttribute("aria-busy", "false");
    return made;
  };

  // The arrow keys go through a list faster than charts are drawn: the last choice is drawn to its end.
  let passes = 0;
  const all = async () => {
    const pass = ++passes;
    for (const chart of page.charts) {
      if (pass !== passes) return;
      try { await draw(chart); } catch (error) { console.error(`${chart.name}: ${error.message}`); }
    }
    document.body.dataset.drawn = "true";
  };
  document.querySelectorAll(".controls input, .controls select").forEach((e) => e.addEventListener("change", all));
  for (const chart of page.charts.filter((item) => item.one)) {
    document.getElementById(`one-${chart.name}`).addEventListener("change", () => draw(chart));
  }
  // Panels have a width of their own; single charts follow their place by themselves.
  let wide = document.body.clientWidth;
  window.addEventListener("resize", () => {
    if (document.body.clientWidth !== wide) { wide = document.body.clientWidth; all(); }
  });
  window.addEventListener("beforeprint", () =>
    document.querySelectorAll("details").forEach((e) => { e.open = true; }));
  all();
})();
