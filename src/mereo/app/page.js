"use strict";
// The page of `mereo app`: requests predictions from the local server and shows them.
const make = (kind, given = {}, ...children) => {
  const element = Object.assign(document.createElement(kind), given);
  element.append(...children);
  return element;
};
const SVG = "http://www.w3.org/2000/svg";
const draw = (kind, given, text) => {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

const HIDE = "hide";
const SMALLEST_TREE = 0.75; // a tree shrinks to the width of its card, but its text stays readable; then it scrolls
let models = [];
const noChanges = () => ({ rotate: 0, noise: 0, attack: 0, couplings: "own", silence: [] });
const state = { image: null, name: null, explain: null, first: 0, second: null, tests: 0, changes: noChanges() };
const unchanged = new Map(); // scores of the unchanged image: model and image -> class -> score
const maps = new Map(); // the chosen map of each model

async function fetchJson(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not respond; is `mereo app` still running?");
  }
  const content = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
  if (!response.ok) throw new Error(content.error);
  return content;
}

const post = (path, content) =>
  fetchJson(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) });

// One request at a time; changes made meanwhile are sent together when it is finished.
let busy = false, waiting = false;

function shownModels() {
  return state.second === null ? [state.first] : [state.first, state.second];
}

const changed = () => JSON.stringify(state.changes) !== JSON.stringify(noChanges());

async function predict() {
  if (!state.image) return;
  if (busy) {
    waiting = true;
    return;
  }
  busy = true;
  at("predictions").classList.add("busy");
  try {
    const began = performance.now(), image = state.image, key = JSON.stringify(image);
    const predictions = [];
    for (const model of shownModels()) {
      if (changed() && !unchanged.has(`${model} ${key}`)) keepUnchanged(model, key, await post("/api/predict", { ...image, model }));
      const explain = state.explain?.model === model ? state.explain.number : null;
      const prediction = await post("/api/predict", { ...image, ...state.changes, explain, model });
      if (!changed()) keepUnchanged(model, key, prediction);
      predictions.push(prediction);
    }
    if (image === state.image) {
      showPredictions(predictions, key);
      showStatus(`${state.name ?? predictions[0].title}: predicted in ${Math.round(performance.now() - began)} ms.`);
    }
  } catch (error) {
    showStatus(error.message, true);
  } finally {
    busy = false;
    at("predictions").classList.remove("busy");
    if (waiting) {
      waiting = false;
      predict();
    }
  }
}

function keepUnchanged(model, key, prediction) {
  unchanged.set(`${model} ${key}`, new Map(prediction.classes.map((each) => [each.number, each.score])));
}

async function choose(image, name = null) {
  state.image = image;
  state.name = name;
  state.explain = null;
  state.changes.silence = [];
  showChanges();
  await predict();
}

// The controls can be far from the prediction.
async function chooseAndShow(image, name = null) {
  await choose(image, name);
  const { top } = at("predictions-title").getBoundingClientRect();
  if (top < 0 || top > 0.8 * innerHeight) at("predictions-title").scrollIntoView();
}

async function upload(blob, name, choice) {
  showStatus(`Reading ${name} ...`);
  try {
    const { image } = await fetchJson("/api/images", { method: "POST", body: blob });
    await choice({ image }, name);
  } catch (error) {
    showStatus(`${name}: ${error.message}`, true);
  }
}

// Predictions

function showPredictions(predictions, key) {
  at("nothing").hidden = true;
  const focused = document.activeElement?.closest?.(".view")?.dataset.model;
  at("predictions").replaceChildren(...predictions.map((prediction) => card(prediction, key)));
  for (const tree of at("predictions").querySelectorAll("[role=tree]")) watchTree(tree);
  for (const tree of at("predictions").querySelectorAll(".scroll > svg")) {
    const natural = Number(tree.getAttribute("width"));
    tree.style.maxWidth = `${natural}px`;
    tree.style.minWidth = `${SMALLEST_TREE * natural}px`;
  }
  for (const { scrollWidth: whole, clientWidth: shown, parentNode } of at("predictions").querySelectorAll(".scroll")) {
    if (whole > shown) parentNode.querySelector(".scroll").scrollLeft = (whole - shown) / 2; // the class stands in the middle
  }
  if (focused !== undefined) document.querySelector(`.view[data-model="${focused}"]`)?.focus();
}

function card(prediction, key) {
  const article = at("card").content.cloneNode(true).firstElementChild, model = models[prediction.model];
  const find = (selector) => article.querySelector(selector);
  const best = prediction.classes.find((each) => each.number === prediction.predicted);
  article.dataset.model = prediction.model;
  find("h3").textContent = model.name;
  find(".predicted").append(`${best.name} `, make("span", {}, `${prediction.kind} ${best.score.toFixed(3)}`));
  if (prediction.correct !== null) {
    const words = prediction.correct ? "correct" : `the true class is ${prediction.truth}`;
    find(".predicted").append(make("span", {}, ", "), make("span", { className: prediction.correct ? "good" : "bad" }, words));
  } else if (prediction.truth !== null) {
    find(".predicted").append(make("span", {}, `; the true class ${prediction.truth} is none of its classes`));
  }
  find(".facts").textContent =
    `${model.architecture}, ${model.parameters.toLocaleString("en")} parameters; ${prediction.milliseconds} ms` +
    (prediction.silenced ? `; ${prediction.silenced} ${prediction.silenced === 1 ? "part" : "parts"} silenced` : state.changes.silence.length ? "; it has no parts at these places" : "");
  find(".one").textContent = prediction.kind;
  const before = unchanged.get(`${prediction.model} ${key}`);
  find("tbody").replaceChildren(...prediction.classes.map((each) => classRow(each, prediction, before)));
  showImage(find, prediction, model);
  if (prediction.reconstruction) {
    find(".reconstruction").hidden = false;
    find(".reconstruction img").src = prediction.reconstruction;
  }
  find(".words").id = `m${prediction.model}-words`;
  find(".words").textContent = prediction.words;
  // The server makes this SVG; names in it are escaped, and the page's policy runs no script from it.
  if (prediction.tree) find(".scroll").innerHTML = prediction.tree;
  return article;
}

function classRow(each, prediction, before) {
  const button = make("button", { type: "button", title: `Explain ${each.name}` }, each.name);
  button.addEventListener("click", () => {
    state.explain = { model: prediction.model, number: each.number };
    predict();
  });
  const bar = make("span", { className: "bar" }), was = before?.get(each.number);
  bar.style.width = `${100 * each.probability}%`;
  bar.title = each.probability.toFixed(3);
  const row = make("tr", {}, make("td", {}, button), make("td", {}, each.score.toFixed(3)),
    make("td", {}, was === undefined ? "–" : was.toFixed(3)),
    make("td", {}, `${(100 * each.probability).toFixed(1)} %`, bar));
  row.classList.toggle("explained", each.number === prediction.explained);
  if (each.number === prediction.explained) button.setAttribute("aria-pressed", "true");
  return row;
}

function showImage(find, prediction, model) {
  const svg = find(".image"), view = find(".view"), prefix = `m${prediction.model}`;
  svg.setAttribute("viewBox", `0 0 ${model.width} ${model.height}`);
  svg.setAttribute("aria-label", `${prediction.title} as the network sees it`);
  svg.innerHTML = prediction.boxes;
  svg.prepend(draw("image", { id: `${prefix}-image`, width: model.width, height: model.height, href: prediction.image }));
  view.dataset.model = prediction.model;
  view.setAttribute("aria-label", "Image. Arrow keys move, Enter silences the parts at the place or restores them.");
  const marks = find(".marks");
  marks.setAttribute("viewBox", "0 0 100 100");
  marks.setAttribute("preserveAspectRatio", "none");
  for (const [x, y] of state.changes.silence) {
    const d = `M${100 * x - 4} ${100 * y - 4}l8 8m0 -8l-8 8`;
    marks.append(draw("path", { class: "place", d }), draw("path", { class: "place top", d }));
  }
  const cursor = draw("rect", { class: "cursor", width: 6, height: 6 });
  const place = [...(cursorOf.get(prediction.model) ?? [0.5, 0.5])];
  const move = () => {
    cursorOf.set(prediction.model, place);
    cursor.setAttribute("x", 100 * place[0] - 3);
    cursor.setAttribute("y", 100 * place[1] - 3);
  };
  move();
  marks.append(cursor);
  view.addEventListener("click", (event) => {
    const box = view.getBoundingClientRect();
    const share = (value) => Math.min(Math.max(value, 0), 1);
    silence([share((event.clientX - box.left) / box.width), share((event.clientY - box.top) / box.height)]);
  });
  view.addEventListener("keydown", (event) => {
    const step = 1 / 16, steps = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (event.key in steps) {
      place.forEach((value, axis) => { place[axis] = Math.min(Math.max(value + steps[event.key][axis], 0), 1); });
      move();
    } else if (event.key === "Enter" || event.key === " ") {
      silence([...place]);
    } else return;
    event.preventDefault();
  });
  const select = find(".map");
  select.append(make("option", { value: "" }, "none"), ...prediction.maps.map((map, n) => make("option", { value: String(n) }, map.name)));
  select.append(make("option", { value: HIDE }, "hide each square (slower)"));
  const wanted = maps.get(prediction.model) ?? (prediction.maps.length ? String(prediction.maps.length - 1) : "");
  select.value = [...select.options].some((option) => option.value === wanted) ? wanted : "";
  const show = async () => {
    maps.set(prediction.model, select.value);
    let map = prediction.maps[Number(select.value)];
    if (select.value === "") map = null;
    if (select.value === HIDE) map = await occlusion(prediction);
    paint(find(".heat"), find(".scale"), map);
  };
  select.addEventListener("change", show);
  show();
}

const cursorOf = new Map();

async function occlusion(prediction) {
  showStatus("Hiding one square after another ...");
  try {
    const map = await post("/api/occlusion", { ...state.image, ...state.changes, explain: prediction.explained, model: prediction.model });
    showStatus("Red: where hiding a square lowers the score.");
    return map;
  } catch (error) {
    showStatus(error.message, true);
    return null;
  }
}

// A map over the image: more colour where it is larger; red for and blue against where it has negative values.
function paint(canvas, scale, map) {
  canvas.hidden = !map;
  scale.textContent = map ? `${map.low.toFixed(3)} to ${map.high.toFixed(3)}` : "";
  if (!map) return;
  canvas.width = map.width;
  canvas.height = map.height;
  const values = Uint8Array.from(atob(map.bytes), (letter) => letter.charCodeAt(0));
  const image = new ImageData(map.width, map.height);
  values.forEach((value, place) => {
    const share = map.signed ? (value - 128) / 127 : value / 255;
    const colour = !map.signed ? [255, 120, 0] : share > 0 ? [224, 49, 49] : [25, 113, 194];
    image.data.set([...colour, Math.min(255 * Math.abs(share), 255)], 4 * place);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// Changes

function silence(place) {
  const near = (other) => Math.hypot(other[0] - place[0], other[1] - place[1]) < 0.05;
  const there = state.changes.silence;
  state.changes.silence = there.some(near) ? there.filter((other) => !near(other)) : [...there, place].slice(-64);
  showChanges();
  predict();
}

function showChanges() {
  const { rotate, noise, attack, couplings, silence: places } = state.changes;
  at("rotate").value = rotate;
  at("noise").value = noise;
  at("attack").value = attack;
  at("rotate-value").textContent = `${rotate}°`;
  at("noise-value").textContent = noise;
  at("attack-value").textContent = attack;
  document.querySelector(`[name=couplings][value=${couplings}]`).checked = true;
  at("silenced").textContent = places.length ? `Silenced at ${places.length} ${places.length === 1 ? "place" : "places"}.` : "No part is silenced.";
  at("restore").disabled = !places.length;
}

for (const name of ["rotate", "noise", "attack"]) {
  at(name).addEventListener("input", () => {
    state.changes[name] = Number(at(name).value);
    showChanges();
    predict();
  });
}
for (const radio of document.querySelectorAll("[name=couplings]")) {
  radio.addEventListener("change", () => {
    state.changes.couplings = radio.value;
    predict();
  });
}
at("restore").addEventListener("click", () => {
  state.changes.silence = [];
  showChanges();
  predict();
});
at("reset").addEventListener("click", () => {
  state.changes = noChanges();
  showChanges();
  predict();
});

// Giving images

watchFiles((file) => upload(file, file.name, chooseAndShow));
// While the reader draws, the page must not scroll.
watchPad((pad) => pad.toBlob((blob) => upload(blob, "drawing", choose), "image/png"));

// Test images

function thumbnail(each, owner, label) {
  const button = make("button", { type: "button" }, make("img", { src: each.image, alt: "" }), label);
  button.title = button.ariaLabel = `Test image ${each.index}, ${label}`;
  button.addEventListener("click", () => chooseAndShow({ owner, index: each.index }));
  return button;
}

async function showTests() {
  const owner = state.first;
  const late = () => owner !== state.first; // another network was chosen while this one's images were on their way
  try {
    const page = await fetchJson(`/api/test_images?model=${owner}&start=${state.tests}`);
    if (late()) return;
    at("tests").replaceChildren(...page.images.map((each) => thumbnail(each, owner, each.class)));
    at("range").textContent = `${page.start + 1} to ${page.start + page.images.length} of ${page.count}`;
    at("tests-reason").textContent = "";
    at("before").disabled = page.start === 0;
    at("after").disabled = page.start + page.page >= page.count;
    state.tests = page.start;
  } catch (error) {
    if (late()) return;
    at("tests").replaceChildren();
    at("range").textContent = "";
    at("before").disabled = at("after").disabled = true;
    at("tests-reason").textContent = error.message;
  }
}
at("before").addEventListener("click", () => { state.tests = Math.max(state.tests - 24, 0); showTests(); });
at("after").addEventListener("click", () => { state.tests += 24; showTests(); });

// Networks

function fillSelects() {
  const options = () => models.map((model) => make("option", { value: String(model.number) }, model.name));
  at("first").replaceChildren(...options());
  at("run-of").replaceChildren(...options());
  fillSecond();
}

function fillSecond() {
  const others = models.filter((model) => model.number !== state.first);
  at("second").replaceChildren(make("option", { value: "" }, "none"), ...others.map((model) => make("option", { value: String(model.number) }, model.name)));
  if (state.second === state.first) state.second = null;
  at("second").value = state.second === null ? "" : String(state.second);
  at("second").disabled = !others.length;
}

at("first").addEventListener("change", () => {
  state.first = Number(at("first").value);
  state.tests = 0;
  at("run-of").value = at("first").value;
  at("run-shown").replaceChildren();
  fillSecond();
  showTests();
  predict();
});
at("second").addEventListener("change", () => {
  state.second = at("second").value === "" ? null : Number(at("second").value);
  predict();
});

async function begin() {
  showChanges();
  try {
    models = await fetchJson("/api/models");
    if (models.length > 1) state.second = 1;
    fillSelects();
    await showTests();
    showStatus("Ready: drop an image, draw, or pick a test image.");
  } catch (error) {
    showStatus(error.message, true);
  }
}
begin();
