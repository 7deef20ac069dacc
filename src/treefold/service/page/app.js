// The explorer of treefold: asks the service for drawings, and shows them. Plain JavaScript, nothing from outside.
//
// Labels are hostile until proven otherwise: they enter the page as text nodes or through SVG that was parsed as XML, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const LONGEST_ADDRESS = 8000; // characters; longer ones are cut by mail programs and proxies
const LISTED_CHILDREN = 200;
const [SMALLEST, READABLE] = [0.42, 0.7]; // scales: a new drawing that would be smaller than the first starts with the other
const DRAWN_ELEMENTS = new Set(["svg", "g", "path", "rect", "text", "title"]);
const FORMATS = {
  sexpr: "s-expression", penn: "Penn brackets", sst: "brackets with classes", json: "JSON", jsonl: "JSON lines", xml: "XML",
  html: "HTML", python: "Python", code: "program", conllu: "CoNLL-U", csv: "CSV", tsv: "TSV",
};

let facts = { models: [], formats: [] }; // of the service
let state = { texts: [], format: "sexpr", models: [], layer: "answers", folded: [], unfolded: [] }; // what is drawn
let answer = null; // the last answer of the service
let nodes = []; // of each drawing, a Map from numbers to nodes
let children = new Map(); // from numbers of nodes to those of their children; null has the roots
let current = null; // the number of the node that has the focus
let past = []; // states to which undo returns
let turns = 0; // requests for drawings; only the answer to the last one counts
let panels = [];

// Small helpers

function make(name, properties = {}, ...content) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...content.filter((part) => part !== null && part !== ""));
  return element;
}

function makeSvg(name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

const shortened = (text, length) => (text.length > length ? text.slice(0, length - 1) + "…" : text);
const many = (number) => number.toLocaleString("en");
const count = (number, word, plural = `${word}s`) => `${many(number)} ${number === 1 ? word : plural}`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const shown = (prediction) => (typeof prediction === "number" ? String(+prediction.toPrecision(5)) : String(prediction));
const signed = (number) => (number < 0 ? "−" : "+") + Math.abs(number).toFixed(3);
const factsOf = (name) => facts.models.find((model) => model.name === name);
const treesNeeded = () => factsOf(state.models[0])?.trees ?? 1;

function colourOf(model, prediction) {
  const { classes, colours } = factsOf(model);
  return colours[classes.indexOf(String(prediction))] ?? null;
}

function swatch(colour) {
  const mark = make("span", { className: "swatch" });
  if (colour) mark.style.backgroundColor = colour;
  return mark;
}

// Talking to the service

class Problem extends Error {
  constructor({ message, remedy }) {
    super(message);
    this.remedy = remedy && !message.includes(remedy) ? remedy : "";
  }
}

async function ask(path, body) {
  const key = sessionStorage.getItem("treefold-key");
  const headers = key ? { "X-API-Key": key } : {};
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers });
  } catch {
    throw new Problem({ message: "The service does not answer.", remedy: "See whether it still runs, then try again." });
  }
  if (response.status === 401) {
    sessionStorage.setItem("treefold-key", await askForKey());
    return ask(path, body);
  }
  const content = await response.json().catch(() => null);
  if (!response.ok || content === null)
    throw new Problem(content?.error ?? { message: `The service answered with the status ${response.status}.`, remedy: "Try again." });
  return content;
}

let keyAsked = null; // several requests may need the key at the same time

function askForKey() {
  keyAsked ??= new Promise((resolve) => {
    const dialog = $("key");
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.querySelector("form").addEventListener("submit", () => { keyAsked = null; resolve($("key-text").value); }, { once: true });
    dialog.showModal();
  });
  return keyAsked;
}

function showProblem(problem) {
  const [first, ...rest] = problem.message.split("\n");
  $("problem").replaceChildren(make("p", {}, first));
  if (rest.length) $("problem").append(make("pre", {}, rest.join("\n")));
  if (problem.remedy) $("problem").append(make("p", { className: "quiet" }, problem.remedy));
  $("problem").hidden = false;
  if (!(problem instanceof Problem)) throw problem; // a mistake of the page: leave it to the console, too
}

// Drawing

async function draw(changes = {}, { edit = null, focus = null, unfold = null, isUndo = false } = {}) {
  const next = { ...state, ...changes };
  if (!next.texts.length) Object.assign(next, typed()); // nothing could be drawn so far
  const turn = ++turns;
  $("panels").setAttribute("aria-busy", "true");
  try {
    const { texts, format, models, layer, folded, unfolded } = next;
    const found = await ask("page/draw", { trees: texts, format, models, layer, folded, unfolded, unfold, edit, focus });
    if (turn !== turns) return;
    performance.mark("answer");
    if (edit) Object.assign(next, { texts: found.trees, format: "sexpr" });
    Object.assign(next, { folded: found.folded, unfolded: found.unfolded });
    const isNewTree = next.format !== state.format || next.texts.join("\n") !== state.texts.join("\n");
    if (isNewTree && answer && !isUndo) past.push(state);
    if (isNewTree && !edit) current = null;
    const before = answer;
    [state, answer] = [next, found];
    $("problem").hidden = true;
    if (isNewTree) writeInputs(state.texts, state.format); // else keep what the user is typing
    show(isNewTree && !edit && !isUndo);
    if (found.focus !== null) select(found.focus, { move: edit === null, focus: true });
    tell(before, edit, isUndo);
    writeAddress();
    requestAnimationFrame(() => {
      performance.mark("drawn");
      performance.measure("drawing", "answer", "drawn");
    });
  } catch (problem) {
    if (turn === turns) showProblem(problem);
  } finally {
    if (turn === turns) $("panels").removeAttribute("aria-busy");
  }
}

function show(isNewTree) {
  for (const { nodes } of answer.drawings)
    for (const node of nodes) if (Array.isArray(node.label)) node.label = `[${node.label.join(" ")}]`;
  nodes = answer.drawings.map((drawing) => new Map(drawing.nodes.map((node) => [node.node, node])));
  children = new Map();
  for (const node of answer.drawings[0].nodes) {
    if (!children.has(node.parent)) children.set(node.parent, []);
    children.get(node.parent).push(node.node);
  }
  if (!nodes[0].has(current)) current = null;
  const names = answer.drawings.map((drawing) => drawing.model);
  const isSame = panels.length === names.length && panels.every((panel, place) => panel.name === names[place]);
  if (!isSame) {
    panels = names.map((name) => new Panel(name));
    $("panels").replaceChildren(...panels.map((panel) => panel.element));
  }
  panels.forEach((panel, place) => panel.fill(answer.drawings[place], nodes[place], place));
  if (isNewTree || !isSame) {
    arrange();
    panels.forEach((panel) => panel.fit(true));
  }
  select(current ?? children.get(null)[0]);
  showInputs();
  showNotes();
  showEffects();
  showDiffers();
  $("list").hidden = false;
  if ($("list").open) showList();
}

// Wide trees stand one above the other, others side by side: whatever makes them larger.
function arrange() {
  const [wide, high, many] = [$("panels").clientWidth, Math.max(340, innerHeight - 260), panels.length];
  const scale = (width, height) => Math.min(width / panels[0].width, height / panels[0].height, 1);
  $("panels").classList.toggle("stacked", scale(wide, high / many) > scale(wide / many, high) * 1.1);
  $("panels").style.setProperty("--many", many);
}

// One drawing, with its answer above and its legend below; it can be moved and zoomed.
class Panel {
  constructor(name) {
    this.name = name;
    this.head = make("figcaption");
    this.stage = make("div", { className: "stage" });
    this.legend = make("ul", { className: "legend" });
    this.element = make("figure", { className: "panel card" }, this.head, this.stage, this.legend);
    [this.x, this.y, this.scale] = [0, 0, 1];
    this.fingers = new Map(); // that touch it, and the mouse button
    this.dragged = 0; // pixels
    this.listen();
    new ResizeObserver(() => { if (!this.isMoved) this.fit(true); }).observe(this.stage);
  }

  fill(drawing, byNumber, place) {
    this.showHead(drawing, byNumber);
    const parsed = new DOMParser().parseFromString(drawing.svg, "image/svg+xml");
    if (parsed.documentElement.localName !== "svg") throw new Error("the drawing is not SVG");
    const svg = document.importNode(parsed.documentElement, true);
    for (const element of svg.querySelectorAll("*")) if (!DRAWN_ELEMENTS.has(element.localName)) element.remove();
    for (const name of ["width", "height", "viewBox"]) svg.removeAttribute(name);
    svg.setAttribute("role", "group");
    svg.querySelector(":scope > title")?.remove();
    this.showLegend(svg);
    this.view = makeSvg("g");
    this.view.append(...svg.children);
    svg.append(this.view);
    this.svg = svg;
    this.groups = new Map();
    for (const group of svg.querySelectorAll("g.node")) {
      const node = byNumber.get(Number(group.dataset.node));
      this.groups.set(node.node, group);
      group.querySelector("title").remove(); // the details say more
      group.setAttribute("tabindex", "-1");
      group.setAttribute("role", "button");
      group.setAttribute("aria-label", described(node));
      if (answer.differs.includes(node.node)) group.classList.add("differs");
      if (node.size > 1) this.addFoldMark(group, node);
    }
    for (const group of svg.querySelectorAll("g.rest")) group.querySelector("title").textContent += "; click to show them";
    this.stage.replaceChildren(svg);
    const box = this.view.getBBox();
    [this.width, this.height, this.left, this.top] = [box.width, box.height, box.x, box.y];
    this.place();
  }

  showHead(drawing, byNumber) {
    const root = byNumber.get(children.get(null)[0]);
    const mark = swatch(colourOf(this.name, root.prediction));
    const text = make("output", { className: "answer" }, mark, make("bdi", {}, shown(root.prediction)));
    const chance = root.probability === undefined ? "" : make("span", { className: "probability quiet" }, percent(root.probability));
    const size = make("span", { className: "size quiet" }, count(drawing.size, "node"));
    this.head.replaceChildren(make("span", { className: "name" }, this.name), text, chance, size);
  }

  showLegend(svg) {
    this.legend.replaceChildren();
    let colour = null;
    for (const element of [...svg.children]) {
      if (element.localName === "rect") colour = element.getAttribute("fill");
      else if (element.classList.contains("legend")) {
        this.legend.append(make("li", {}, ...(colour ? [swatch(colour)] : []), make("bdi", {}, element.textContent)));
        colour = null;
      } else continue;
      element.remove();
    }
  }

  addFoldMark(group, node) {
    const rect = group.querySelector("rect");
    const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => Number(rect.getAttribute(name)));
    const mark = makeSvg("g", { class: "fold" });
    const isHidden = Boolean(this.view.querySelector(`g.rest[data-node="${node.node}"]`));
    const [middle, bottom] = [x + width / 2, y + height + 5];
    mark.append(makeSvg("circle", { cx: middle, cy: bottom, r: 12, class: "reach" }), makeSvg("circle", { cx: middle, cy: bottom, r: 7 }));
    mark.append(makeSvg("path", { d: `M${middle - 3.5} ${bottom}h7` + (isHidden ? `M${middle} ${bottom - 3.5}v7` : "") }));
    group.append(mark);
  }

  // Moving and zooming

  place() {
    this.view.setAttribute("transform", `translate(${this.x} ${this.y}) scale(${this.scale})`);
  }

  fit(mustBeReadable = false) {
    if (!this.view || !this.stage.clientWidth) return;
    const [wide, high, margin] = [this.stage.clientWidth, this.stage.clientHeight, 16];
    const whole = Math.min((wide - 2 * margin) / this.width, (high - 2 * margin) / this.height, 1.25);
    this.scale = mustBeReadable && whole < SMALLEST ? READABLE : whole;
    this.x = (wide - this.width * this.scale) / 2 - this.left * this.scale;
    this.y = Math.min(Math.max((high - this.height * this.scale) / 2, margin), 3 * margin) - this.top * this.scale;
    if (whole < this.scale) { // not all can be read: start at the root
      const root = this.groups.get(children.get(null)[0]);
      const box = root.getBBox();
      if (this.width * this.scale > wide) this.x = wide / 2 - (box.x + box.width / 2) * this.scale;
    }
    this.isMoved = false;
    this.place();
  }

  zoom(factor, x = this.stage.clientWidth / 2, y = this.stage.clientHeight / 2) {
    const scale = Math.min(Math.max(this.scale * factor, 0.02), 4);
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.isMoved = true;
    this.place();
  }

  bringIntoView(number) {
    const group = this.groups.get(number);
    if (!group) return;
    const box = group.getBBox();
    const middle = [box.x + box.width / 2, box.y + box.height / 2].map((place) => place * this.scale);
    const [x, y] = [middle[0] + this.x, middle[1] + this.y];
    const [wide, high, margin] = [this.stage.clientWidth, this.stage.clientHeight, 40];
    if (x > margin && x < wide - margin && y > margin && y < high - margin) return;
    [this.x, this.y, this.isMoved] = [wide / 2 - middle[0], high / 2 - middle[1], true];
    this.place();
  }

  listen() {
    const { stage } = this;
    stage.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = stage.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    stage.addEventListener("pointerdown", (event) => {
      if (event.button === 0) this.fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    });
    stage.addEventListener("pointermove", (event) => this.drag(event));
    for (const name of ["pointerup", "pointercancel"])
      stage.addEventListener(name, (event) => {
        this.fingers.delete(event.pointerId);
        stage.classList.remove("dragged");
        setTimeout(() => { this.dragged = 0; }); // after the click that follows
      });
    stage.addEventListener("click", (event) => {
      if (this.dragged > 4) return;
      const group = event.target.closest("g[data-node]");
      if (!group) return;
      const number = Number(group.dataset.node);
      if (event.target.closest("g.fold") || group.classList.contains("rest")) fold(number);
      else openEdit(number, this);
    });
    stage.addEventListener("pointerover", (event) => {
      const group = event.target.closest("g.node");
      if (group && !this.fingers.size) inspect(Number(group.dataset.node));
    });
    stage.addEventListener("focusin", (event) => {
      const group = event.target.closest("g.node");
      if (group) select(Number(group.dataset.node));
    });
  }

  drag(event) {
    const finger = this.fingers.get(event.pointerId);
    if (!finger) return;
    const [right, down] = [event.clientX - finger.x, event.clientY - finger.y];
    const others = [...this.fingers].filter(([id]) => id !== event.pointerId).map(([, other]) => other);
    if (others.length) {
      const box = this.stage.getBoundingClientRect();
      const far = (one) => Math.hypot(one.x - others[0].x, one.y - others[0].y) || 1;
      const now = { x: event.clientX, y: event.clientY };
      this.zoom(far(now) / far(finger), (now.x + others[0].x) / 2 - box.left, (now.y + others[0].y) / 2 - box.top);
      this.dragged = 9;
    } else {
      this.dragged += Math.hypot(right, down);
      if (this.dragged <= 4) return;
      if (!this.stage.hasPointerCapture(event.pointerId)) this.stage.setPointerCapture(event.pointerId);
      this.stage.classList.add("dragged");
      [this.x, this.y, this.isMoved] = [this.x + right, this.y + down, true];
      this.place();
    }
    Object.assign(finger, { x: event.clientX, y: event.clientY });
  }
}

function described(node) {
  const chance = node.probability === undefined ? "" : `, ${percent(node.probability)}`;
  const size = node.size > 1 ? `, ${count(node.size, "node")}` : "";
  return `${shortened(node.label, 80)}: ${shown(node.prediction)}${chance}${size}${node.unknown ? ", unknown label" : ""}`;
}

// Nodes

function select(number, { move = false, focus = false } = {}) {
  current = number;
  for (const panel of panels) {
    for (const group of panel.svg.querySelectorAll('[tabindex="0"]')) group.setAttribute("tabindex", "-1");
    for (const group of panel.svg.querySelectorAll(".current")) group.classList.remove("current");
    const group = panel.groups.get(number);
    group?.setAttribute("tabindex", "0");
    group?.classList.add("current");
    if (move) panel.bringIntoView(number);
  }
  if (focus) {
    const owner = panels.find((panel) => panel.element.contains(document.activeElement)) ?? panels[0];
    owner.groups.get(number)?.focus({ preventScroll: true });
  }
  inspect(number);
}

async function goTo(number) {
  if (!panels[0].groups.has(number)) await draw({}, { focus: number });
  select(number, { move: true, focus: true });
}

function fold(number) {
  const isHidden = panels[0].view.querySelector(`g.rest[data-node="${number}"]`);
  const others = (list) => list.filter((each) => each !== number);
  const changes = { folded: others(state.folded), unfolded: others(state.unfolded) };
  if (!isHidden) changes.folded.push(number);
  current = number;
  const isTreeFocused = document.activeElement?.closest(".stage");
  draw(changes, { unfold: isHidden ? number : null }).then(() => select(number, { focus: Boolean(isTreeFocused) }));
}

function inspect(number) {
  const first = nodes[0].get(number);
  if (!first) return;
  const label = make("p", { className: "label" }, make("bdi", {}, first.label === "" ? "(empty label)" : first.label));
  const place = first.parent === null ? "the root" : `depth ${first.depth}`;
  const size = first.size > 1 ? `subtree of ${count(first.size, "node")}` : "a leaf";
  const parts = [label, make("p", { className: "quiet" }, `${place}, ${size}`)];
  if (first.unknown) parts.push(make("p", { className: "warning" }, "The model does not know this label; it counts as <unk>."));
  const found = nodes.map((each) => each.get(number));
  const names = shownClasses(found);
  answer.drawings.forEach((drawing, place) => {
    const node = found[place];
    if (!node) return;
    if (answer.drawings.length > 1) parts.push(make("h3", {}, drawing.model));
    parts.push(node.probabilities ? bars(drawing.model, node, names) : make("p", { className: "number" }, shown(node.prediction)));
    if (node.effect === undefined) return;
    const what = node.probability === undefined ? "the number" : "the probability of the answer";
    const direction = node.effect < 0 ? "rises" : "falls";
    parts.push(make("p", {}, `Without it, ${what} ${direction} by ${Math.abs(node.effect).toFixed(3)}.`));
  });
  $("node-body").replaceChildren(...parts);
  $("node-body").dataset.node = number;
}

function bars(model, node, names) {
  const list = make("ul", { className: "bars" });
  for (const name of names) {
    const share = node.probabilities[name] ?? 0;
    const bar = make("span", { className: "bar" });
    bar.style.width = `${100 * share}%`;
    bar.style.backgroundColor = colourOf(model, name) ?? "";
    const label = make("bdi", { className: "class", title: name }, name);
    list.append(make("li", {}, label, make("span", { className: "track" }, bar), make("span", { className: "share" }, percent(share))));
  }
  const rest = factsOf(model).classes.length - names.length;
  return make("div", {}, list, rest > 0 ? make("p", { className: "quiet" }, `and ${count(rest, "other class", "other classes")}`) : "");
}

// Of several models with many classes, those are shown that at least one of them thinks possible.
function shownClasses(found) {
  const names = new Set(found.flatMap((node) => Object.keys(node?.probabilities ?? {})));
  if (answer.drawings.length === 1 || names.size <= 5) return [...names];
  const chance = (name) => Math.max(...found.map((node) => node?.probabilities?.[name] ?? 0));
  return [...names].filter((name) => chance(name) >= 0.005);
}

function openEdit(number, panel = panels[0]) {
  select(number);
  const place = panels.indexOf(panel);
  const node = nodes[place].get(number);
  const siblings = answer.drawings[place].nodes.filter((each) => each.parent === node.parent).map((each) => each.node);
  $("edit-title").replaceChildren("Change ", make("bdi", {}, shortened(node.label, 40)));
  $("label").value = node.label;
  $("swap").disabled = node.parent === null || siblings.at(-1) === number;
  $("delete").disabled = node.parent === null;
  $("edit-fold").disabled = node.size === 1;
  $("edit-fold").textContent = panel.view.querySelector(`g.rest[data-node="${number}"]`) ? "Unfold" : "Fold";
  $("edit-undo").disabled = !past.length;
  Object.assign($("edit").dataset, { node: number, model: panel.name });
  $("edit").showModal();
  const [box, own] = [panel.groups.get(number).getBoundingClientRect(), $("edit").getBoundingClientRect()];
  const fits = (wish, most) => `${Math.max(8, Math.min(wish, most - 8))}px`;
  $("edit").style.left = fits(box.left + box.width / 2 - own.width / 2, innerWidth - own.width);
  $("edit").style.top = fits(box.bottom + 12, innerHeight - own.height);
  $("label").select();
}

function change(action) {
  const { node, model } = $("edit").dataset;
  $("edit").close();
  draw({}, { edit: { node: Number(node), do: action, label: action === "label" ? $("label").value : "", model } });
}

function undo() {
  if (!past.length) return;
  const { texts, format, folded, unfolded } = past.pop();
  draw({ texts, format, folded, unfolded }, { isUndo: true });
}

// What is said around the drawing

function tell(before, edit, isUndo) {
  const answers = answer.drawings.map((drawing) => `${answer.drawings.length > 1 ? `${drawing.model}: ` : ""}${drawing.headline}`);
  let text = `${isUndo ? "Undone. " : ""}${answers.join("; ")}.`;
  if (edit && before) {
    const changes = answer.drawings.map((drawing) => {
      const old = before.drawings.find((each) => each.model === drawing.model);
      const name = answer.drawings.length > 1 ? ` of ${drawing.model}` : "";
      const [was, is] = [shown(old?.prediction), shown(drawing.prediction)];
      return was === is ? `the answer${name} stays ${is}` : `the answer${name} changed from ${was} to ${is}`;
    });
    text = changes.join("; ") + ".";
  }
  $("status").textContent = answers.length > 1 && !edit ? text : text[0].toUpperCase() + text.slice(1);
  $("undo").disabled = !past.length;
}

function showNotes() {
  const notes = answer.drawings.flatMap((drawing) => {
    const { note } = factsOf(drawing.model);
    return [note && `${drawing.model}: ${note}`, drawing.note && `${drawing.model}: ${drawing.note}`];
  });
  const { unknown } = answer;
  if (unknown.length) {
    const names = shortened(unknown.map((label) => shortened(label, 30)).join(", "), 160);
    const [labels, count] = unknown.length === 1 ? ["a label", "it counts"] : [`${unknown.length} labels`, "they count"];
    notes.push(`The model does not know ${labels}; ${count} as <unk>: ${names}`);
  }
  notes.push(answer.note);
  $("notes").replaceChildren();
  notes.filter(Boolean).forEach(addNote);
}

function addNote(text) {
  $("notes").append(make("p", { className: "note" }, make("bdi", {}, text)));
}

function nodeButton(number, ...content) {
  const button = make("button", { type: "button", className: "link" }, ...content);
  button.addEventListener("click", () => goTo(number));
  return button;
}

function showEffects() {
  const parts = [];
  if (state.layer === "effects")
    answer.drawings.forEach((drawing, place) => {
      const known = drawing.nodes.filter((node) => Math.abs(node.effect ?? 0) >= 0.0005);
      const weight = (node) => (node.probability === undefined ? Math.abs(node.effect) : node.effect);
      const most = known.sort((one, other) => weight(other) - weight(one)).slice(0, 5);
      if (answer.drawings.length > 1) parts.push(make("h3", {}, drawing.model));
      const rows = most.map((node) => {
        const size = make("span", { className: "quiet" }, node.size > 1 ? count(node.size, "node") : "");
        const button = nodeButton(node.node, make("bdi", {}, shortened(node.label, 24)), size);
        return make("li", {}, button, make("span", { className: "share" }, signed(-node.effect)));
      });
      const none = make("p", { className: "quiet" }, "No subtree matters by itself.");
      parts.push(rows.length ? make("ol", { className: "rows" }, ...rows) : none);
    });
  if (parts.length) parts.unshift(make("p", { className: "quiet" }, "How the answer changes without a subtree:"));
  $("effects").hidden = !parts.length;
  $("effects").querySelector("div").replaceChildren(...parts);
}

function showDiffers() {
  $("differs").hidden = answer.drawings.length < 2;
  const rows = answer.differs.slice(0, 50).map((number) => {
    const answers = nodes.map((map) => map.get(number)).filter(Boolean).map((node) => shown(node.prediction));
    const button = nodeButton(number, make("bdi", {}, shortened(nodes[0].get(number)?.label ?? `node ${number}`, 24)));
    return make("li", {}, button, make("span", { className: "share" }, make("bdi", {}, answers.join(" / "))));
  });
  const rest = answer.differs.length - rows.length;
  const hasClasses = state.models.every((name) => factsOf(name).classes.length);
  const none = answer.note || (hasClasses ? "They agree at every node." : "Numbers are not compared.");
  $("differs").querySelector("div").replaceChildren(
    rows.length ? make("ol", { className: "rows" }, ...rows) : make("p", { className: "quiet" }, none),
    rest > 0 ? make("p", { className: "quiet" }, `and at ${count(rest, "other node")}`) : "",
  );
}

function showList() {
  const isSmall = nodes[0].size <= 100;
  const items = (numbers) => {
    const list = make("ul");
    for (const number of numbers.slice(0, LISTED_CHILDREN)) list.append(item(number));
    if (numbers.length > LISTED_CHILDREN)
      list.append(make("li", { className: "quiet" }, `and ${many(numbers.length - LISTED_CHILDREN)} more`));
    return list;
  };
  const item = (number) => {
    const node = nodes[0].get(number);
    const text = make("bdi", {}, described(node));
    const below = children.get(number);
    if (!below) return make("li", {}, text, node.size > 1 ? ` (${count(node.size - 1, "node")} not listed)` : "");
    const details = make("details", { open: isSmall || node.depth < 2 }, make("summary", {}, text));
    details.addEventListener("toggle", () => { if (details.open && details.childElementCount === 1) details.append(items(below)); });
    return make("li", {}, details);
  };
  $("list").querySelector("div").replaceChildren(items(children.get(null)));
}

// The address keeps what is drawn

function writeAddress() {
  const address = new URLSearchParams();
  if (state.format !== "sexpr") address.set("format", state.format);
  for (const model of state.models) address.append("model", model);
  if (state.layer !== "answers") address.set("layer", state.layer);
  const length = state.texts.reduce((sum, text) => sum + encodeURIComponent(text).length, 0);
  if (length <= LONGEST_ADDRESS) for (const text of state.texts) address.append("tree", text);
  else addNote("The address of the page cannot hold a tree of this length; share its text instead.");
  history.replaceState(null, "", `#${address}`);
}

async function readAddress() {
  const address = new URLSearchParams(location.hash.slice(1));
  const wanted = address.getAll("model");
  const missing = wanted.filter((name) => !factsOf(name));
  let models = wanted.filter((name) => factsOf(name));
  if (!models.length) models = [facts.models[0].name];
  models = models.filter((name) => factsOf(name).trees === factsOf(models[0]).trees);
  const format = facts.formats.includes(address.get("format")) ? address.get("format") : "sexpr";
  const layer = address.get("layer") === "effects" ? "effects" : "answers";
  const texts = address.getAll("tree");
  Object.assign(state, { models, layer });
  showInputs();
  if (texts.length) {
    writeInputs(texts, format);
    await draw({ texts, format, models, layer, folded: [], unfolded: [] });
  } else await drawRandom();
  if (missing.length) addNote(`This service has no model of the name ${missing.join(", ")}.`);
}

// Input

function writeInputs(texts, format) {
  texts.forEach((text, place) => { if ($(`tree-${place}`)) $(`tree-${place}`).value = text; });
  $("format").value = format;
}

function showInputs() {
  const isPair = treesNeeded() === 2;
  $("tree-1").hidden = !isPair;
  $("tree-0").rows = isPair ? 4 : 7;
  $("tree-0").setAttribute("aria-label", isPair ? "Left tree" : "Tree");
  for (const input of $("models").querySelectorAll("input")) input.checked = state.models.includes(input.value);
  for (const input of document.getElementsByName("layer")) input.checked = input.value === state.layer;
  $("labels").replaceChildren(...(factsOf(state.models[0])?.labels ?? []).map((label) => make("option", { value: label })));
  showExampleFilters();
}

function typed() {
  const texts = ["tree-0", "tree-1"].slice(0, treesNeeded()).map((id) => $(id).value);
  return { texts, format: $("format").value };
}

const drawTyped = () => draw({ ...typed(), folded: [], unfolded: [] });

async function drawRandom() {
  const seed = Math.floor(Math.random() * 2 ** 31);
  try {
    const { trees } = await ask(`page/random?${new URLSearchParams({ model: state.models[0], seed })}`);
    writeInputs(trees, "sexpr");
    await draw({ texts: trees, format: "sexpr", folded: [], unfolded: [] });
  } catch (problem) {
    showProblem(problem);
  }
}

function chooseModels(changed) {
  const inputs = [...$("models").querySelectorAll("input")];
  const kind = factsOf(changed.value).trees;
  for (const input of inputs) if (factsOf(input.value).trees !== kind) input.checked = false; // trees and pairs do not mix
  const models = inputs.filter((input) => input.checked).map((input) => input.value);
  if (!models.length) { changed.checked = true; return; }
  if (treesNeeded() === kind) draw({ models });
  else { state.models = models; showInputs(); drawRandom(); }
}

// Examples

let examplesFor = null; // the model whose examples are shown
let examplesTurn = 0;

function showExampleFilters() {
  const owner = state.models.map(factsOf).find((model) => model?.splits);
  $("examples").hidden = !owner;
  if (!owner || owner.name === examplesFor) return;
  examplesFor = owner.name;
  const splits = Object.entries(owner.splits).filter(([, size]) => size);
  $("split").replaceChildren(...splits.map(([name, size]) => make("option", { value: name }, `${name} (${many(size)})`)));
  $("split").value = (splits.find(([name]) => name === "test") ?? splits[0])[0];
  $("target-label").hidden = !owner.targets;
  const targets = (owner.targets ?? []).map((name) => make("option", { value: name }, shortened(name, 40)));
  $("target").replaceChildren(make("option", { value: "" }, "any"), ...targets);
  const words = owner.targets ? ["All", "Right", "Wrong"] : ["All", "Nearest", "Farthest"];
  $("examples").querySelectorAll(".segments span").forEach((span, place) => { span.textContent = words[place]; });
  $("example-list").replaceChildren();
  findExamples();
}

async function findExamples() {
  const turn = ++examplesTurn;
  const query = new URLSearchParams({ model: examplesFor, split: $("split").value });
  query.set("answer", document.querySelector('input[name="answer"]:checked').value);
  for (const id of ["target", "min_size", "max_size", "min_depth", "max_depth"]) if ($(id).value) query.set(id, $(id).value);
  $("found").textContent = "The model answers the examples …";
  try {
    const found = await ask(`page/examples?${query}`);
    if (turn !== examplesTurn) return;
    const judged = found.judged < found.of ? `${many(found.judged)} of ${many(found.of)} examples` : count(found.judged, "example");
    const right = found.right === null ? "" : `, ${percent(found.right / Math.max(found.judged, 1))} right`;
    const owner = state.models.length > 1 ? ` (${examplesFor})` : "";
    $("found").textContent = `${count(found.found, "match", "matches")} among ${judged}${right}${owner}`;
    $("example-list").replaceChildren(...found.examples.map(exampleItem));
  } catch (problem) {
    if (turn === examplesTurn) $("found").textContent = problem.message;
  }
}

function exampleItem(example) {
  const [word, sign] = example.right ? ["right", "✓"] : ["wrong", "✗"];
  const mark = example.right === null ? "" : make("span", { className: word, title: word }, sign);
  const text = `${example.target ?? "no class"}${example.right ? "" : `, answer ${example.prediction}`}`;
  const size = make("span", { className: "quiet" }, count(example.size, "node"));
  const tree = example.trees ? shortened(example.trees.join("   "), 90) : "a large tree";
  const head = make("span", { className: "row" }, mark, make("bdi", {}, shortened(text, 40)), size);
  const button = make("button", { type: "button" }, head, make("bdi", { className: "snippet" }, tree));
  button.dataset.number = example.number;
  button.addEventListener("click", async () => {
    try {
      const query = new URLSearchParams({ model: examplesFor, number: example.number });
      const texts = example.trees ?? (await ask(`page/examples?${query}`)).trees; // of large trees, only this one
      writeInputs(texts, "sexpr");
      await draw({ texts, format: "sexpr", folded: [], unfolded: [] });
    } catch (problem) {
      showProblem(problem);
    }
  });
  return make("li", {}, button);
}

// Keys

function step(key) {
  const node = nodes[0].get(current);
  if (!node) return null;
  const siblings = children.get(node.parent);
  const place = siblings.indexOf(current);
  const wanted = {
    ArrowUp: node.parent, ArrowDown: children.get(current)?.[0], ArrowLeft: siblings[place - 1], ArrowRight: siblings[place + 1],
    Home: children.get(null)[node.tree],
  }[key];
  return panels[0].groups.has(wanted) ? wanted : null;
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || !answer) return;
  const isTyping = event.target.closest("input, textarea, select");
  const inTree = event.target.closest("g.node");
  if (isTyping && isTyping.type !== "radio" && isTyping.type !== "checkbox") return;
  const actions = {
    "?": () => $("help").showModal(), u: undo, "0": () => panels.forEach((panel) => panel.fit()),
    "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8),
  };
  if (inTree) {
    const owner = panels.find((panel) => panel.element.contains(inTree));
    if (event.key.startsWith("Arrow") || event.key === "Home") actions[event.key] = () => {
      const next = step(event.key);
      if (next !== null) select(next, { move: true, focus: true });
    };
    actions.Enter = actions.e = actions[" "] = () => openEdit(current, owner);
    actions.f = () => { if (nodes[0].get(current).size > 1) fold(current); };
  }
  if (!actions[event.key]) return;
  event.preventDefault();
  actions[event.key]();
}

const zoom = (factor) => panels.forEach((panel) => panel.zoom(factor));

function listen() {
  $("tree-form").addEventListener("submit", (event) => { event.preventDefault(); drawTyped(); });
  for (const id of ["tree-0", "tree-1"])
    $(id).addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      drawTyped();
    });
  $("random").addEventListener("click", drawRandom);
  $("undo").addEventListener("click", undo);
  $("in").addEventListener("click", () => zoom(1.25));
  $("out").addEventListener("click", () => zoom(0.8));
  $("fit").addEventListener("click", () => panels.forEach((panel) => panel.fit()));
  $("models").addEventListener("change", (event) => chooseModels(event.target));
  for (const input of document.getElementsByName("layer")) input.addEventListener("change", () => draw({ layer: input.value }));
  $("list").addEventListener("toggle", () => { if ($("list").open && answer) showList(); });
  let timer = null;
  $("examples").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(findExamples, 250); });
  $("edit").querySelector("form").addEventListener("submit", (event) => { event.preventDefault(); change("label"); });
  $("swap").addEventListener("click", () => change("swap"));
  $("delete").addEventListener("click", () => change("delete"));
  $("edit-fold").addEventListener("click", () => { $("edit").close(); fold(Number($("edit").dataset.node)); });
  $("edit-undo").addEventListener("click", () => { $("edit").close(); undo(); });
  $("help-button").addEventListener("click", () => $("help").showModal());
  for (const dialog of document.querySelectorAll("dialog:not(#key)")) {
    dialog.querySelector(".close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); }); // the backdrop
  }
  document.addEventListener("keydown", pressed);
  window.addEventListener("hashchange", readAddress);
}

async function start() {
  listen();
  try {
    facts = await ask("page/facts");
  } catch (problem) {
    showProblem(problem);
    return;
  }
  $("format").replaceChildren(...facts.formats.map((name) => make("option", { value: name }, FORMATS[name] ?? name)));
  $("models").replaceChildren(...facts.models.map((model) => {
    const input = make("input", { type: "checkbox", value: model.name, disabled: facts.models.length === 1 });
    return make("label", { title: [model.task, model.note].filter(Boolean).join("; ") }, input, make("span", {}, model.name));
  }));
  await readAddress();
}

start();
