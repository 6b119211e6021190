"use strict";
// The node under the pointer, in focus, or pinned by a click or tap lights its way up to the class, all below it, and
// their patches on the image. Arrow keys go up, down and aside, Enter pins; Escape lets a pinned node go.
function watchTree(tree) {
  const nodes = [...tree.querySelectorAll("[role=treeitem]")];
  const words = document.getElementById(tree.dataset.words);
  const find = (id) => (id ? document.getElementById(id) : null);
  const above = (node) => find(node.dataset.parent);
  const below = (node) => nodes.filter((other) => other.dataset.parent === node.id);
  const beside = (node) => nodes.filter((other) => other.dataset.parent === node.dataset.parent);
  let pinned = null;

  const branch = (node) => [node, ...below(node).flatMap(branch)];
  const family = (node) => {
    const found = branch(node);
    for (let up = above(node); up; up = above(up)) found.push(up);
    return found;
  };

  function show(node) {
    const lit = new Set(node ? family(node) : []);
    const patches = new Set(node ? branch(node) : []);
    tree.classList.toggle("lit", node !== null);
    for (const other of nodes) {
      other.classList.toggle("on", lit.has(other));
      other.classList.toggle("at", other === node);
      find(other.dataset.edge)?.classList.toggle("on", lit.has(other));
      find(other.dataset.box)?.classList.toggle("on", patches.has(other));
      find(other.dataset.box)?.classList.toggle("at", other === node);
    }
    words.textContent = (node ?? nodes[0]).getAttribute("aria-label");
  }

  function pin(node) {
    pinned = node === pinned ? null : node;
    show(pinned);
  }

  function go(node) {
    if (!node) return;
    for (const other of nodes) other.tabIndex = other === node ? 0 : -1;
    node.focus();
  }

  const nodeAt = (event) => event.target.closest("[role=treeitem]");
  tree.addEventListener("pointerover", (event) => { if (event.pointerType === "mouse") show(nodeAt(event) ?? pinned); });
  tree.addEventListener("pointerleave", () => show(pinned));
  tree.addEventListener("focusin", (event) => show(nodeAt(event)));
  tree.addEventListener("focusout", () => show(pinned));
  tree.addEventListener("click", (event) => pin(nodeAt(event)));
  tree.addEventListener("keydown", (event) => {
    const node = nodeAt(event);
    const row = node ? beside(node) : [];
    const moves = {
      ArrowUp: () => go(above(node)),
      ArrowDown: () => go(below(node)[0]),
      ArrowLeft: () => go(row[row.indexOf(node) - 1]),
      ArrowRight: () => go(row[row.indexOf(node) + 1]),
      Enter: () => pin(node),
      " ": () => pin(node),
      Escape: () => { pinned = null; show(null); },
    };
    if (!node || !(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]();
  });
  show(null);
}
document.querySelectorAll("[role=tree]").forEach(watchTree);
