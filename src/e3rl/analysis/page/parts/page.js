"use strict";
// Draws the figures of the page from the numbers in #data. `#x=tokens` in the address picks an axis.
const errors = [];
window.addEventListener("error", (event) => {
  errors.push(event.message);
  document.body.dataset.errors = errors.join("; ");
});

const data = JSON.parse(document.getElementById("data").textContent);
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [520, 300, 54, 10, 12, 42];
const MINI = { width: 260, height: 168, left: 44, right: 8, top: 24, bottom: 24 };
const WHOLE = { width: WIDTH, height: HEIGHT, left: LEFT, right: RIGHT, top: TOP, bottom: BOTTOM };
const [BEYOND, BEFORE, CROWD, NEAR] = ["#9AA3AD", "#22272e", 4, 26];
const chosen = new Set();
let hovered = null;
let apart = data.arms.length > data.many;
const wanted = new URLSearchParams(location.hash.slice(1)).get("x");
let axis = wanted in data.axes ? wanted : Object.keys(data.axes)[0];

function element(name, attributes, parent, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found.length < 2 && count < 9 ? ticks(low, high, count + 1) : found;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return +(value / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return +(value / 1e3).toPrecision(3) + "k";
  return String(+value.toPrecision(3));
}

function extent(values, pad) {
  const known = values.filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const room = (high - low || Math.abs(high) || 1) * pad;
  return [low - room, high + room];
}

function scale([low, high], from, to, log) {
  const of = log ? Math.log2 : (value) => value;
  const [a, b] = [of(low), of(high)];
  return (value) => from + ((of(value) - a) / (b - a || 1)) * (to - from);
}

// Runs of points that have a value, since a curve may begin late or pause.
function pieces(curve, keys) {
  const found = [[]];
  curve.x.forEach((x, i) => {
    if (keys.every((key) => curve[key][i] !== null)) found.at(-1).push(i);
    else if (found.at(-1).length) found.push([]);
  });
  return found.filter((piece) => piece.length);
}

function drawBand(group, curve, sx, sy) {
  const at = (key) => (i) => `${sx(curve.x[i]).toFixed(1)},${sy(curve[key][i]).toFixed(1)}`;
  for (const piece of pieces(curve, ["low", "high"])) {
    if (piece.length === 1 || curve.upright) {
      for (const i of piece) {
        const ends = { x1: sx(curve.x[i]), x2: sx(curve.x[i]), y1: sy(curve.low[i]), y2: sy(curve.high[i]) };
        element("line", { ...ends, class: "bar", "stroke-width": 1.2, "stroke-opacity": 0.6 }, group);
      }
      continue;
    }
    const points = [...piece.map(at("low")), ...[...piece].reverse().map(at("high"))].join(" ");
    element("polygon", { points }, group);
  }
}

const nameOf = (curve) => (curve.arm === null ? "before training" : data.arms[curve.arm].label);
const colourOf = (curve) => (curve.arm === null ? BEFORE : data.arms[curve.arm].colour);

// A curve as a group, so that one rule of the style sheet fades it or lets it stand out.
function drawCurve(svg, figure, curve, sx, sy, ghost) {
  const colour = ghost ? ghost : curve.dashed ? BEFORE : colourOf(curve);
  const beyond = colour === BEYOND && !curve.dashed && !ghost ? " beyond" : "";
  const before = curve.arm === null ? " before" : "";
  const group = element("g", { class: ghost ? "ghost curve" : `curve${beyond}${before}` }, svg);
  group.style.setProperty("--c", colour);
  if (curve.arm !== null && !ghost) group.dataset.arm = curve.arm;
  if (!curve.dashed && !ghost) drawBand(group, curve, sx, sy);
  const at = (i) => `${sx(curve.x[i]).toFixed(1)},${sy(curve.mean[i]).toFixed(1)}`;
  const dashes = curve.dashed || curve.arm === null ? { "stroke-dasharray": "4 3" } : {};
  const width = ghost || curve.dashed ? 1 : 1.7;
  for (const piece of pieces(curve, ["mean"])) {
    element("polyline", { points: piece.map(at).join(" "), "stroke-width": width, ...dashes }, group);
    if (!figure.points || ghost) continue;
    for (const i of piece) {
      element("circle", { cx: sx(curve.x[i]), cy: sy(curve.mean[i]), r: 2.2 }, group);
    }
  }
  const last = curve.mean.findLastIndex((value) => value !== null);
  if (last < 0 || ghost || curve.dashed) return;
  const x = sx(curve.x[last]);
  const side = x < WIDTH / 2 ? { x: x + 6, "text-anchor": "start" } : { x: x - 4, "text-anchor": "end" };
  element("text", { ...side, y: sy(curve.mean[last]) - 7, class: "end" }, group, nameOf(curve));
}

function drawAxes(svg, figure, box, label, xs, ys, sx, sy, places) {
  const show = (percent) => (value) => (percent ? `${+(100 * value).toPrecision(3)} %` : short(value));
  const bottom = box.height - box.bottom;
  const small = box === MINI;
  for (const value of ticks(...ys, small ? 3 : 5)) {
    element("line", { x1: box.left, x2: box.width - box.right, y1: sy(value), y2: sy(value), class: "grid" }, svg);
    element("text", { x: box.left - 5, y: sy(value) + 4, "text-anchor": "end" }, svg, show(figure.percent)(value));
  }
  const marks = figure.log ? places.filter((_, i) => !small || i % 2 === 0) : ticks(...xs, small ? 3 : 6);
  for (const value of marks) {
    if (sx(value) < box.left - 1 || sx(value) > box.width - box.right + 1) continue;
    const place = { x: sx(value), y: bottom + 15, "text-anchor": "middle" };
    element("text", place, svg, show(figure.percent_x)(value));
  }
  if (small) return;
  const middle = { x: (box.left + box.width) / 2, y: box.height - 8, "text-anchor": "middle", class: "x-label" };
  element("text", middle, svg, label);
  const turned = `rotate(-90 12 ${(box.top + bottom) / 2})`;
  const upright = { x: 12, y: (box.top + bottom) / 2, "text-anchor": "middle", transform: turned };
  element("text", upright, svg, figure.y);
}

function nearestPoint(curve, sx, x) {
  const distance = (i) => Math.abs(sx(curve.x[i]) - x);
  return curve.x.reduce((best, _, i) => (distance(i) < distance(best) ? i : best), 0);
}

function describe(figure, curve, i) {
  const show = (value) => (figure.percent ? `${(100 * value).toFixed(1)} %` : value.toPrecision(4));
  const range = curve.low[i] === null ? "" : ` [${show(curve.low[i])}, ${show(curve.high[i])}]`;
  const at = figure.percent_x ? `${(100 * curve.x[i]).toFixed(1)} %` : short(curve.x[i]);
  const named = curve.names ? `, ${curve.names[i]},` : curve.dashed ? ", target," : "";
  return `${nameOf(curve)}${named} at ${at}: ${show(curve.mean[i])}${range}`;
}

// The arm whose curve is nearest stands out everywhere; the values of all that stand out are told.
function addTip(node, svg, figure, box, curves, sx, sy) {
  const hair = element("line", { y1: box.top, y2: box.height - box.bottom, class: "hair" }, svg);
  const tip = node.querySelector(".tip");
  svg.addEventListener("mousemove", (event) => {
    const frame = svg.getBoundingClientRect();
    const x = ((event.clientX - frame.left) / frame.width) * box.width;
    const y = ((event.clientY - frame.top) / frame.height) * box.height;
    const points = curves.map((curve) => [curve, nearestPoint(curve, sx, x)]);
    const known = points.filter(([curve, i]) => curve.mean[i] !== null);
    const away = ([curve, i]) => Math.abs(sy(curve.mean[i]) - y);
    const [first] = known.filter(([curve]) => curve.arm !== null).sort((a, b) => away(a) - away(b));
    stress(first && away(first) < NEAR ? first[0].arm : null);
    const told = known.filter(([curve]) => data.arms.length <= data.many || standsOut(curve.arm));
    tip.textContent = told.map(([curve, i]) => describe(figure, curve, i)).join("\n");
    tip.style.display = told.length ? "block" : "none";
    const left = event.clientX - node.getBoundingClientRect().left;
    tip.style.left = `${Math.min(left + 14, node.clientWidth - tip.offsetWidth)}px`;
    tip.style.top = `${event.clientY - node.getBoundingClientRect().top + 16}px`;
    hair.setAttribute("x1", x);
    hair.setAttribute("x2", x);
    hair.style.visibility = "visible";
  });
  svg.addEventListener("mouseleave", () => {
    tip.style.display = "none";
    hair.style.visibility = "hidden";
    stress(null);
  });
}

const standsOut = (arm) => arm === hovered || chosen.has(arm);

function stress(arm) {
  if (arm === hovered) return;
  hovered = arm;
  paint();
}

// Arms that are pointed at or chosen stand out against the others, which turn grey.
function paint() {
  const any = hovered !== null || chosen.size > 0;
  document.querySelectorAll("g.curve[data-arm], svg.mini").forEach((node) => {
    const out = standsOut(Number(node.dataset.arm));
    node.classList.toggle("faded", any && !out);
    if (node.tagName === "g") node.classList.toggle("strong", any && out);
  });
  document.querySelectorAll("figure svg:not(.mini) g.curve.strong").forEach((node) => {
    node.parentNode.insertBefore(node, node.parentNode.querySelector(".hair"));
  });
  document.body.dataset.out = any ? data.arms.filter((_, i) => standsOut(i)).map((a) => a.label).join(", ") : "";
}

function scales(figure, box, curves, inRange = curves) {
  const places = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const pad = figure.points ? 0.05 : 0.015;
  const xs = figure.log ? [places[0] / 1.1, places.at(-1) * 1.1] : extent(places, pad);
  const ys = extent(inRange.flatMap((curve) => [...curve.mean, ...curve.low, ...curve.high]), 0.06);
  const sx = scale(xs, box.left, box.width - box.right, figure.log);
  return { places, xs, ys, sx, sy: scale(ys, box.height - box.bottom, box.top, false) };
}

// Upright lines of one arm, or of all, each place once.
function drawMarks(svg, figure, box, key, sx, arm) {
  const byArm = figure.marks[key] ?? {};
  const places = arm === undefined ? Object.values(byArm).flat() : (byArm[arm] ?? []);
  for (const x of new Set(places)) {
    const line = { x1: sx(x), x2: sx(x), y1: box.top, y2: box.height - box.bottom, stroke: "#6b7480" };
    element("line", { ...line, "stroke-dasharray": "1 3", class: "mark" }, svg);
  }
}

function canvas(figure, box, label) {
  const svg = element("svg", { viewBox: `0 0 ${box.width} ${box.height}`, role: "img" });
  svg.setAttribute("aria-label", label);
  return svg;
}

function drawTogether(node, figure, key, curves) {
  const svg = canvas(figure, WHOLE, figure.title);
  node.querySelector("h3").after(svg);
  if (!curves.length) {
    element("text", { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle" }, svg, "not recorded");
    return;
  }
  svg.classList.toggle("crowded", new Set(curves.map((curve) => curve.arm)).size > CROWD);
  const { places, xs, ys, sx, sy } = scales(figure, WHOLE, curves);
  drawAxes(svg, figure, WHOLE, data.axes[key] ?? key, xs, ys, sx, sy, places);
  drawMarks(svg, figure, WHOLE, key, sx);
  curves.forEach((curve) => drawCurve(svg, figure, curve, sx, sy));
  addTip(node, svg, figure, WHOLE, curves, sx, sy);
}

// What a panel shows of arms that its scale does not reach ends at its edge.
function clipped(svg, box, name) {
  const clip = element("clipPath", { id: name }, element("defs", {}, svg));
  const [width, height] = [box.width - box.left - box.right, box.height - box.top - box.bottom];
  element("rect", { x: box.left, y: box.top, width, height }, clip);
  return element("g", { "clip-path": `url(#${name})` }, svg);
}

// A small panel per arm: the arm in colour, the control dark, the others pale. All have one scale,
// but for arms so far off that they would flatten the others: these have one of their own, and say so.
function drawApart(node, figure, key, all) {
  const curves = all.filter((curve) => curve.arm !== null || curve.x.length > 1); // a ghost has no dots
  const grid = document.createElement("div");
  grid.className = "multiples";
  node.querySelector("h3").after(grid);
  const far = figure.far[key];
  const near = curves.filter((curve) => !far.includes(curve.arm));
  const shared = scales(figure, MINI, curves, near);
  const arms = [...new Set(curves.map((curve) => curve.arm))].filter((arm) => arm !== null);
  for (const arm of arms) {
    const alone = far.includes(arm);
    const own = curves.filter((curve) => curve.arm === arm);
    const { places, xs, ys, sx, sy } = alone ? scales(figure, MINI, curves, [...near, ...own]) : shared;
    const svg = canvas(figure, MINI, `${figure.title}, ${data.arms[arm].label}${alone ? ", own scale" : ""}`);
    svg.classList.add("mini");
    svg.dataset.arm = arm;
    svg.style.setProperty("--c", data.arms[arm].colour);
    const title = element("text", { x: MINI.left, y: 14, class: "title" }, svg, data.arms[arm].label);
    if (data.arms[arm].colour === BEYOND) title.style.fill = BEFORE;
    drawAxes(svg, figure, MINI, "", xs, ys, sx, sy, places);
    drawMarks(svg, figure, MINI, key, sx, arm);
    const others = curves.filter((curve) => curve.arm !== arm && !curve.dashed && curve.arm !== data.control);
    const pale = far.length ? clipped(svg, MINI, `${figure.id}-edge-${arm}`) : svg;
    others.filter((curve) => curve.arm !== null).forEach((curve) => drawCurve(pale, figure, curve, sx, sy, "#e1e5ea"));
    curves.filter((curve) => curve.arm === null).forEach((curve) => drawCurve(svg, figure, curve, sx, sy, BEYOND));
    const base = curves.filter((curve) => curve.arm === data.control && curve.arm !== arm && !curve.dashed);
    base.forEach((curve) => drawCurve(svg, figure, curve, sx, sy, "#5f6b7a"));
    own.forEach((curve) => drawCurve(svg, figure, curve, sx, sy));
    const corner = { x: MINI.width - MINI.right - 2, y: MINI.top + 10, "text-anchor": "end", class: "own" };
    if (alone) element("text", corner, svg, "own scale");
    addTip(node, svg, figure, MINI, [...own, ...base], sx, sy);
    grid.append(svg);
  }
  const label = document.createElement("p");
  label.className = "note";
  const base = data.control === null ? "" : `; dark: ${data.arms[data.control].label}`;
  const before = curves.some((curve) => curve.arm === null) ? "; grey: before training" : "";
  const apart = far.length ? `; own scale: ${far.map((arm) => data.arms[arm].label).join(", ")}` : "";
  label.textContent = `x: ${data.axes[key] ?? key}, y: ${figure.y}${base}${before}${apart}`;
  grid.after(label);
}

function draw(figure) {
  const node = document.getElementById(figure.id);
  const [key] = axis in figure.curves ? [axis] : Object.keys(figure.curves);
  const curves = figure.curves[key];
  node.querySelectorAll("svg, .multiples, p.note").forEach((old) => old.remove());
  node.dataset.curves = curves.length;
  (apart && curves.length ? drawApart : drawTogether)(node, figure, key, curves);
}

function drawAll() {
  document.querySelector(".figures").classList.toggle("apart", apart);
  data.figures.forEach(draw);
  document.body.dataset.axis = axis;
  document.body.dataset.figures = document.querySelectorAll("figure:has(svg)").length;
  paint();
}

const select = document.getElementById("axis");
select.value = axis;
select.addEventListener("change", () => {
  axis = select.value;
  history.replaceState(null, "", `#x=${axis}`);
  drawAll();
});
const box = document.getElementById("apart");
box.checked = apart;
box.addEventListener("change", () => {
  apart = box.checked;
  drawAll();
});
document.querySelectorAll(".bar button").forEach((button, arm) => {
  button.addEventListener("click", () => {
    if (!chosen.delete(arm)) chosen.add(arm);
    button.setAttribute("aria-pressed", String(chosen.has(arm)));
    paint();
  });
  button.addEventListener("mouseenter", () => stress(arm));
  button.addEventListener("mouseleave", () => stress(null));
});
document.querySelectorAll(".forest g.curve").forEach((row) => {
  row.addEventListener("mouseenter", () => stress(Number(row.dataset.arm)));
  row.addEventListener("mouseleave", () => stress(null));
});
document.body.dataset.errors = "";
drawAll();
