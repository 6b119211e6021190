"use strict";
// The part of the page about a run: its curves, its errors and the confusion matrix.

function chart(title, lines) {
  const width = 420, height = 220, left = 46, right = 10, top = 36, bottom = 26;
  const values = lines.flatMap((line) => line.values.filter((value) => value !== null));
  const low = Math.min(...values), high = Math.max(...values), room = high - low || 1, count = lines[0].values.length;
  const x = (n) => left + ((width - left - right) * n) / Math.max(count - 1, 1);
  const y = (value) => top + (height - top - bottom) * (1 - (value - low) / room);
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  svg.append(draw("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - right}` }));
  svg.append(draw("text", { x: left, y: 14 }, title));
  for (const value of [low, high]) svg.append(draw("text", { x: 2, y: y(value) + 4 }, Number(value.toPrecision(3))));
  for (const n of new Set([0, count - 1])) svg.append(draw("text", { x: x(n), y: height - 8, "text-anchor": n ? "end" : "start" }, `epoch ${n + 1}`));
  lines.forEach((line, n) => {
    const points = line.values.map((value, place) => (value === null ? null : `${x(place).toFixed(1)} ${y(value).toFixed(1)}`)).filter(Boolean);
    if (points.length === 1) svg.append(draw("circle", { class: line.kind, cx: points[0].split(" ")[0], cy: points[0].split(" ")[1], r: 3 }));
    else svg.append(draw("path", { class: `line ${line.kind}`, d: `M${points.join("L")}` }));
    svg.append(draw("text", { class: line.kind, x: width - right, y: 14 + 13 * n, "text-anchor": "end" }, line.name));
  });
  return svg;
}

// Columns that measure the same, such as train_loss and val_loss, share a chart.
function charts(columns) {
  const groups = new Map();
  for (const [name, values] of Object.entries(columns)) {
    const [, split, what] = /^(train|val|validation|test)_(.+)$/.exec(name) ?? [];
    if (!split || values.every((value) => value === null)) continue;
    groups.set(what, [...(groups.get(what) ?? []), { name: split === "val" ? "validation" : split, values, kind: split === "train" ? "train" : "held" }]);
  }
  return [...groups].map(([what, lines]) => chart(what.replaceAll("_", " "), lines));
}

async function showCurves() {
  const shown = at("run-shown");
  try {
    const { columns, results } = await fetchJson(`/api/curves?model=${at("run-of").value}`);
    const drawn = charts(columns);
    const words = results
      ? `Best epoch ${results.best_epoch}, chosen on ${results.chosen_on}; ${results.train_images.toLocaleString("en")} training images, ${Math.round(results.seconds)} s.`
      : "The run is not finished.";
    shown.replaceChildren(make("p", {}, drawn.length ? words : "There is nothing to draw yet."), make("div", { className: "charts" }, ...drawn));
  } catch (error) {
    shown.replaceChildren(make("p", {}, error.message));
  }
}

const LARGEST_TABLE = 30;

function confusionTable(matrix, classes) {
  const head = make("tr", {}, make("td"), ...classes.map((name) => make("th", { scope: "col", title: name }, name)));
  const rows = matrix.map((row, n) => {
    const total = row.reduce((sum, count) => sum + count, 0) || 1;
    const cells = row.map((count, m) => {
      const cell = make("td", { title: `${classes[n]} predicted as ${classes[m]}` }, count || "");
      const colour = n === m ? "47, 158, 68" : "224, 49, 49";
      if (count) cell.style.backgroundColor = `rgba(${colour}, ${0.1 + 0.5 * (count / total)})`;
      return cell;
    });
    return make("tr", {}, make("th", { scope: "row", title: classes[n] }, classes[n]), ...cells);
  });
  return make("table", { className: "confusion" }, make("caption", {}, "True classes in rows, predicted ones in columns"), head, ...rows);
}

function confusionList(matrix, classes) {
  const pairs = matrix.flatMap((row, n) => row.map((count, m) => ({ count, n, m }))).filter(({ count, n, m }) => count && n !== m);
  const largest = pairs.sort((a, b) => b.count - a.count).slice(0, 20);
  return make("ol", {}, ...largest.map(({ count, n, m }) => make("li", {}, `${classes[n]} predicted as ${classes[m]}: ${count}`)));
}

async function showErrors() {
  const number = Number(at("run-of").value), shown = at("run-shown");
  shown.replaceChildren(make("p", {}, "Classifying the test images ..."));
  try {
    const report = await fetchJson(`/api/errors?model=${number}`), { classes } = models[number];
    const which = report.count < report.of ? `${report.count} of the ${report.of} test images` : `${report.of} test images`;
    const words = `${(100 * report.accuracy).toFixed(2)} % of ${which} correct; ${report.wrong} errors` +
      (report.errors.length < report.wrong ? `, the first ${report.errors.length} shown.` : ".");
    const table = classes.length <= LARGEST_TABLE ? confusionTable(report.confusion, classes) : confusionList(report.confusion, classes);
    const thumbs = report.errors.map((each) => thumbnail(each, number, `${each.class}, predicted ${each.predicted}`));
    for (const button of thumbs) button.classList.add("wide");
    shown.replaceChildren(make("p", {}, words), make("div", { className: "scroll" }, table), make("h3", {}, "Errors"), make("div", { className: "thumbs errors" }, ...thumbs));
  } catch (error) {
    shown.replaceChildren(make("p", {}, error.message));
  }
}
at("show-curves").addEventListener("click", showCurves);
at("show-errors").addEventListener("click", showErrors);
at("run-of").addEventListener("change", () => at("run-shown").replaceChildren());
