// The page: loads the network once, and answers for a file, a dropped image or a drawing.
const settings = JSON.parse(document.getElementById("settings").textContent);
const SHOWN = 5;
const KINDS = { lengths: "Lengths of the capsules", activations: "Activations of the capsules" };
let running = Promise.resolve();
let latest = null; // scores of the latest image, by class

// The content of an element: base64 of gzip.
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(at(id).textContent), (letter) => letter.charCodeAt(0));
  at(id).remove();
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function load() {
  const place = URL.createObjectURL(new Blob([await unpacked("runtime")], { type: "text/javascript" }));
  const ort = await import(place);
  ort.env.wasm.numThreads = 1; // threads would need a server that sends special headers
  ort.env.wasm.wasmBinary = (await unpacked("wasm")).buffer;
  const session = await ort.InferenceSession.create(await unpacked("model"), { executionProviders: ["wasm"] });
  return { ort, session };
}

const loaded = load();

async function scoresOf(values) {
  const { ort, session } = await loaded;
  const shape = [1, settings.channels, ...settings.size];
  const { scores } = await session.run({ images: new ort.Tensor("float32", values, shape) });
  if (!scores.data.every(Number.isFinite)) throw new Error("the scores are not finite");
  return shownScores(scores.data, settings);
}

function showSeen(seen) {
  const [height, width] = settings.size, plane = height * width, canvas = at("seen");
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  for (let place = 0; place < plane; place += 1) {
    for (let c = 0; c < 3; c += 1) image.data[4 * place + c] = seen[settings.channels === 3 ? c * plane + place : place];
    image.data[4 * place + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  canvas.hidden = at("seen-title").hidden = false;
}

function showScores(scores) {
  const order = scores.map((_, place) => place).sort((a, b) => scores[b] - scores[a]).slice(0, SHOWN);
  at("class").textContent = settings.classes[order[0]];
  at("kind").textContent = showsProbabilities(settings) ? "Probabilities" : KINDS[settings.kind];
  at("kind").hidden = false;
  at("scores").replaceChildren(...order.map((place) => {
    const item = document.createElement("li");
    for (const kind of ["name", "bar", "value"]) item.append(Object.assign(document.createElement("span"), { className: kind }));
    const [name, bar, value] = item.children;
    name.textContent = name.title = settings.classes[place];
    bar.style.width = `${100 * Math.min(Math.max(scores[place], 0), 1)}%`;
    value.textContent = scores[place].toFixed(3);
    return item;
  }));
}

// Classify RGBA pixels; one image after another, so that the last one given is the last one shown.
function classify(image, name) {
  running = running.then(async () => {
    const seen = prepare(image.data, image.height, image.width, settings);
    const start = performance.now();
    const scores = await scoresOf(normalised(seen, settings));
    latest = Object.fromEntries(settings.classes.map((one, place) => [one, scores[place]]));
    showSeen(seen);
    showScores(scores);
    showStatus(`${name}: ${Math.round(performance.now() - start)} ms`);
  }).catch((error) => showStatus(`${name} could not be classified: ${error.message}`, true));
  return running;
}

async function read(file) {
  // Colours as they are stored, turned by the EXIF tag, and transparent places black.
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", imageOrientation: "from-image" });
  if (bitmap.width * bitmap.height > settings.most) throw new Error(`it has more than ${settings.most} pixels`);
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillRect(0, 0, bitmap.width, bitmap.height);
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

async function take(file) {
  try {
    await classify(await read(file), file.name);
  } catch (error) {
    showStatus(`${file.name} could not be read as an image: ${error.message}`, true);
  }
}

watchFiles(take);
watchPad((pad, pen) => classify(pen.getImageData(0, 0, pad.width, pad.height), "drawing"));

loaded.then(
  () => showStatus("Ready."),
  (error) => showStatus(`The network could not be started: ${error.message}`, true),
);
