"use strict";
// Pixels as the network takes them: the same whole numbers as Pillow and mereo's reader of image files give.

// Python's round: halves go to the even neighbour.
function roundEven(value) {
  const down = Math.floor(value);
  const rest = value - down;
  return rest > 0.5 || (rest === 0.5 && down % 2 === 1) ? down + 1 : down;
}

// The largest centred box with the proportions of `size`.
function fitBox(height, width, size) {
  const tall = Math.min(height, Math.max(roundEven((width * size[0]) / size[1]), 1));
  const wide = Math.min(width, Math.max(roundEven((height * size[1]) / size[0]), 1));
  return { top: Math.floor((height - tall) / 2), left: Math.floor((width - wide) / 2), height: tall, width: wide };
}

// Planes of 8 bits from RGBA without transparency: three, or one by luma (ITU-R 601, in 16 bit), inside a box.
function planesOf(pixels, width, box, channels) {
  const planes = Array.from({ length: channels === 3 ? 3 : 1 }, () => new Uint8Array(box.height * box.width));
  for (let row = 0, to = 0; row < box.height; row += 1) {
    let from = 4 * ((box.top + row) * width + box.left);
    for (let column = 0; column < box.width; column += 1, from += 4, to += 1) {
      const red = pixels[from], green = pixels[from + 1], blue = pixels[from + 2];
      if (channels === 3) {
        planes[0][to] = red; planes[1][to] = green; planes[2][to] = blue;
      } else {
        planes[0][to] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
      }
    }
  }
  return planes;
}

const ONE = 2 ** 22;

// Triangle filter with antialiasing: for each output its first input and whole-number weights that sum to about ONE.
function weightsOf(from, to) {
  const scale = from / to, wide = Math.max(scale, 1);
  return Array.from({ length: to }, (_, place) => {
    const centre = (place + 0.5) * scale;
    const first = Math.max(Math.trunc(centre - wide + 0.5), 0);
    const end = Math.min(Math.trunc(centre + wide + 0.5), from);
    const weights = [];
    let total = 0;
    for (let input = first; input < end; input += 1) {
      const weight = Math.max(1 - Math.abs((input - centre + 0.5) / wide), 0);
      weights.push(weight);
      total += weight;
    }
    return { first, weights: weights.map((weight) => Math.trunc(0.5 + (weight / total) * ONE)) };
  });
}

// One pass of the filter over lines; `along` and `across` are the steps in memory to the next input and the next line.
function pass(plane, output, filters, lines, along, across, outAlong, outAcross) {
  for (let line = 0; line < lines; line += 1) {
    for (let place = 0; place < filters.length; place += 1) {
      const { first, weights } = filters[place];
      let sum = ONE / 2, from = line * across + first * along;
      for (let k = 0; k < weights.length; k += 1, from += along) sum += plane[from] * weights[k];
      output[line * outAcross + place * outAlong] = Math.min(Math.max(Math.floor(sum / ONE), 0), 255);
    }
  }
}

// A plane in another size: across first, then down.
function resize(plane, height, width, size) {
  let current = plane;
  if (width !== size[1]) {
    const next = new Uint8Array(height * size[1]);
    pass(current, next, weightsOf(width, size[1]), height, 1, width, 1, size[1]);
    current = next;
  }
  if (height !== size[0]) {
    const next = new Uint8Array(size[0] * size[1]);
    pass(current, next, weightsOf(height, size[0]), size[1], size[1], 1, size[1], 1);
    current = next;
  }
  return current;
}

// RGBA pixels of an image as bytes (channels, height, width) that the network sees.
function prepare(pixels, height, width, settings) {
  const { channels, size, load } = settings;
  const stored = channels === 2 ? [load[0], 2 * load[1]] : load; // two views side by side
  const box = fitBox(height, width, stored);
  const planes = planesOf(pixels, width, box, channels).map((plane) => resize(plane, box.height, box.width, stored));
  const seen = new Uint8Array(channels * size[0] * size[1]);
  const top = Math.floor((load[0] - size[0]) / 2), left = Math.floor((load[1] - size[1]) / 2);
  let to = 0;
  for (let channel = 0; channel < channels; channel += 1) {
    const plane = planes[channels === 2 ? 0 : channel], shift = channels === 2 ? channel * load[1] : 0;
    for (let row = 0; row < size[0]; row += 1) {
      for (let column = 0; column < size[1]; column += 1, to += 1) {
        seen[to] = plane[(top + row) * stored[1] + shift + left + column];
      }
    }
  }
  return seen;
}

// Bytes as the network takes them: in [0, 1], then normalised by channel.
function normalised(seen, settings) {
  const values = new Float32Array(seen.length), plane = settings.size[0] * settings.size[1];
  for (let place = 0; place < seen.length; place += 1) {
    const channel = Math.floor(place / plane);
    values[place] = (seen[place] / 255 - settings.mean[channel]) / settings.std[channel];
  }
  return values;
}

// Whether probabilities are shown: of logits, and of whatever a temperature was fitted to.
function showsProbabilities(settings) {
  return settings.kind === "logits" || settings.temperature !== null;
}

// What is shown of scores: probabilities, or lengths and activations as they are.
function shownScores(scores, settings) {
  if (!showsProbabilities(settings)) return Array.from(scores);
  const most = Math.max(...scores);
  const powers = Array.from(scores, (score) => Math.exp((score - most) / (settings.temperature ?? 1)));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}
