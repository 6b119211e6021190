"use strict";
// How an image is given to a page: as a file, dropped on it, or drawn.
const at = (id) => document.getElementById(id);

// A line for the reader, in the colour of errors where something failed.
function showStatus(text, wrong = false) {
  at("status").textContent = text;
  at("status").classList.toggle("wrong", wrong);
}

// Call `take` with each file that is chosen, or dropped anywhere on the page.
function watchFiles(take) {
  at("file").addEventListener("change", (event) => {
    if (event.target.files[0]) take(event.target.files[0]);
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      at("drop").classList.toggle("over", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
    });
  }
}

// Let the pointer draw white on black, and call `take` with the canvas and its context after each stroke.
function watchPad(take) {
  const pad = at("pad"), pen = pad.getContext("2d", { willReadFrequently: true });
  const clear = () => pen.fillRect(0, 0, pad.width, pad.height);
  const placeOf = (event) => {
    const box = pad.getBoundingClientRect();
    return [((event.clientX - box.left) * pad.width) / box.width, ((event.clientY - box.top) * pad.height) / box.height];
  };
  Object.assign(pen, { fillStyle: "#000", strokeStyle: "#fff", lineWidth: 22, lineCap: "round", lineJoin: "round" });
  clear();
  pad.addEventListener("pointerdown", (event) => {
    pad.setPointerCapture(event.pointerId);
    pen.beginPath();
    pen.moveTo(...placeOf(event));
    pen.lineTo(...placeOf(event));
    pen.stroke();
  });
  pad.addEventListener("pointermove", (event) => {
    if (!pad.hasPointerCapture(event.pointerId)) return;
    pen.lineTo(...placeOf(event));
    pen.stroke();
  });
  pad.addEventListener("pointerup", () => take(pad, pen));
  at("clear").addEventListener("click", clear);
}
