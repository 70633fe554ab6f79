"use strict";
// Draws the figures of the page from the numbers in #data. `#x=tokens` in the address picks an axis.
const errors = [];
window.addEventListener("error", (event) => {
  errors.push(event.message);
  document.body.dataset.errors = errors.join("; ");
});

const data = JSON.parse(document.getElementById("data").textContent);
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [520, 300, 54, 10, 12, 42];
const hidden = new Set();
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
  return found;
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

function drawBand(svg, curve, colour, sx, sy) {
  const at = (key) => (i) => `${sx(curve.x[i]).toFixed(1)},${sy(curve[key][i]).toFixed(1)}`;
  for (const piece of pieces(curve, ["low", "high"])) {
    const points = [...piece.map(at("low")), ...piece.reverse().map(at("high"))].join(" ");
    element("polygon", { points, fill: colour, "fill-opacity": 0.14 }, svg);
  }
}

function drawBars(svg, curve, colour, sx, sy) {
  for (const piece of pieces(curve, ["low", "high"])) {
    for (const i of piece) {
      const ends = { x1: sx(curve.x[i]), x2: sx(curve.x[i]), y1: sy(curve.low[i]), y2: sy(curve.high[i]) };
      element("line", { ...ends, stroke: colour, "stroke-width": 1.2, "stroke-opacity": 0.6 }, svg);
    }
  }
}

function drawCurve(svg, figure, curve, across, sy) {
  const colour = data.arms[curve.arm].colour;
  // Intervals of several arms at the same places stand beside each other.
  const aside = figure.points ? 4 * (curve.arm - (data.arms.length - 1) / 2) : 0;
  const sx = (x) => across(x) + aside;
  const at = (i) => `${sx(curve.x[i]).toFixed(1)},${sy(curve.mean[i]).toFixed(1)}`;
  if (!curve.dashed) (figure.points ? drawBars : drawBand)(svg, curve, colour, sx, sy);
  for (const piece of pieces(curve, ["mean"])) {
    const look = curve.dashed
      ? { stroke: "#22272e", "stroke-width": 1, "stroke-dasharray": "4 3" }
      : { stroke: colour, "stroke-width": 1.7 };
    element("polyline", { points: piece.map(at).join(" "), fill: "none", ...look }, svg);
    if (!figure.points) continue;
    for (const i of piece) {
      element("circle", { cx: sx(curve.x[i]), cy: sy(curve.mean[i]), r: 2.8, fill: colour }, svg);
    }
  }
}

function drawAxes(svg, figure, label, xs, ys, sx, sy, places) {
  const percent = (value) => (figure.percent ? `${+(100 * value).toPrecision(3)} %` : short(value));
  for (const value of ticks(...ys, 5)) {
    element("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: sy(value), y2: sy(value), class: "grid" }, svg);
    element("text", { x: LEFT - 6, y: sy(value) + 4, "text-anchor": "end" }, svg, percent(value));
  }
  for (const value of figure.log ? places : ticks(...xs, 6)) {
    if (sx(value) < LEFT - 1 || sx(value) > WIDTH - RIGHT + 1) continue;
    element("text", { x: sx(value), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, svg, short(value));
  }
  const middle = { x: (LEFT + WIDTH) / 2, y: HEIGHT - 8, "text-anchor": "middle", class: "x-label" };
  element("text", middle, svg, label);
  const turned = `rotate(-90 12 ${(TOP + HEIGHT - BOTTOM) / 2})`;
  const upright = { x: 12, y: (TOP + HEIGHT - BOTTOM) / 2, "text-anchor": "middle", transform: turned };
  element("text", upright, svg, figure.y);
}

function addTip(node, svg, figure, curves, sx) {
  const hair = element("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "hair" }, svg);
  const tip = node.querySelector(".tip");
  const show = (value) => (figure.percent ? `${(100 * value).toFixed(1)} %` : value.toPrecision(4));
  svg.addEventListener("mousemove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const lines = curves.map((curve) => {
      const distance = (i) => Math.abs(sx(curve.x[i]) - x);
      const nearest = curve.x.reduce((best, _, i) => (distance(i) < distance(best) ? i : best), 0);
      if (curve.mean[nearest] === null) return "";
      const [low, high] = [curve.low[nearest], curve.high[nearest]];
      const range = low === null ? "" : ` [${show(low)}, ${show(high)}]`;
      const name = data.arms[curve.arm].label + (curve.dashed ? ", target" : "");
      return `${name} at ${short(curve.x[nearest])}: ${show(curve.mean[nearest])}${range}`;
    });
    tip.textContent = lines.filter(Boolean).join("\n");
    tip.style.display = "block";
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
  });
}

function draw(figure) {
  const node = document.getElementById(figure.id);
  const [key] = axis in figure.curves ? [axis] : Object.keys(figure.curves);
  const curves = figure.curves[key].filter((curve) => !hidden.has(curve.arm));
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  svg.setAttribute("aria-label", figure.title);
  node.querySelector("svg")?.remove();
  node.querySelector("h3").after(svg);
  node.dataset.curves = curves.length;
  if (!curves.length) {
    const place = { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle" };
    element("text", place, svg, figure.curves[key].length ? "no arm chosen" : "not recorded");
    return;
  }
  const places = [...new Set(curves.flatMap((curve) => curve.x))];
  const xs = figure.log ? [Math.min(...places) / 1.1, Math.max(...places) * 1.1] : extent(places, figure.points ? 0.05 : 0.015);
  const ys = extent(curves.flatMap((curve) => [...curve.mean, ...curve.low, ...curve.high]), 0.06);
  const sx = scale(xs, LEFT, WIDTH - RIGHT, figure.log);
  const sy = scale(ys, HEIGHT - BOTTOM, TOP, false);
  drawAxes(svg, figure, data.axes[key] ?? key, xs, ys, sx, sy, places);
  for (const x of figure.marks[key] ?? []) {
    const line = { x1: sx(x), x2: sx(x), y1: TOP, y2: HEIGHT - BOTTOM, stroke: "#6b7480" };
    element("line", { ...line, "stroke-dasharray": "1 3", class: "mark" }, svg);
  }
  curves.forEach((curve) => drawCurve(svg, figure, curve, sx, sy));
  addTip(node, svg, figure, curves, sx);
}

function drawAll() {
  data.figures.forEach(draw);
  document.body.dataset.axis = axis;
  document.body.dataset.figures = document.querySelectorAll("figure svg").length;
}

const select = document.getElementById("axis");
select.value = axis;
select.addEventListener("change", () => {
  axis = select.value;
  history.replaceState(null, "", `#x=${axis}`);
  drawAll();
});
document.querySelectorAll(".bar button").forEach((button, arm) => {
  button.addEventListener("click", () => {
    if (!hidden.delete(arm)) hidden.add(arm);
    button.setAttribute("aria-pressed", String(!hidden.has(arm)));
    drawAll();
  });
});
document.body.dataset.errors = "";
drawAll();
