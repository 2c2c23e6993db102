// One panel for each lane: what was promised, what is kept, and the ten minutes behind it.

import { drawHeat, drawLines, drawTraffic, LEFT, PERCENTILES, RANGES, Span } from "./charts.js";
import { byId, el, keyed, say, set, show, style, svg } from "./dom.js";
import { ask } from "./feed.js";
import { answered, axis, bound, clock, count, duration, exactClock, NONE, rate } from "./format.js";

const FIGURES = {
  ttft: "time to first token",
  tpot: "time per output token",
  gap: "gap between two tokens",
  e2e: "time to the end of the answer",
  queue: "wait in the gateway",
};
const SHOWN = [...PERCENTILES, "p999"];
const NAMES = { p50: "p50", p95: "p95", p99: "p99", p999: "p99.9" };
const HEIGHT = 132;
const HEAT = 40;
const TRAFFIC = 26;

const REFRESH_MS = 30_000;
const recent = new Map();
const longer = new Map();
let range = "10m";
let askedAt = 0;
let bands = null;
let figure = "ttft";
let lanes = [];
let cursor = null;
let pointed = null;
const panels = new Map();
const resized = new ResizeObserver(() => requestAnimationFrame(redraw));

const step = () => RANGES[range].step;
const history = () => (range === "10m" ? recent : longer.get(range) ?? new Map());

// A slice that is known already has grown, and takes its own place; what is older than the plots is let go. When a slice
// began may be told a little differently each time, for it is reckoned back from now.
export function takeHistory(news) {
  bands = news.bands ?? bands;
  for (const [name, slices] of Object.entries(news.lanes)) {
    const { step, spans } = RANGES["10m"];
    const all = recent.get(name) ?? [];
    for (const slice of slices) {
      const known = all.findLastIndex((one) => Math.abs(one.at - slice.at) < step / 2);
      if (known >= 0) all[known] = slice;
      else all.push(slice);
    }
    all.sort((a, b) => a.at - b.at);
    const oldest = (all.at(-1)?.at ?? 0) - spans.at(-1) - step;
    recent.set(name, all.filter((slice) => slice.at > oldest));
  }
  redraw();
}

export function takeLanes(snapshot) {
  lanes = snapshot.lanes.map((lane) => ({ ...lane, promises: lane.promises.map(named) }));
  keyed(byId("lane-list"), lanes, (lane) => lane.name, make, update);
  for (const name of panels.keys()) if (!lanes.some((lane) => lane.name === name)) panels.delete(name);
}

export function chooseFigure(name) {
  figure = name;
  say(byId("lanes-figure"), FIGURES[figure]);
  say(byId("heat-key"), `all requests by ${FIGURES[heatFigure()]}`);
  for (const lane of lanes) update(panels.get(lane.name).node, lane);
  redraw();
}

// Only a table that is seen can be scrolled by keyboard.
const scrolled = () => (document.documentElement.dataset.view === "table" ? 0 : null);

export function chooseView(view) {
  document.documentElement.dataset.view = view;
  for (const panel of panels.values()) set(panel.table, "tabindex", scrolled());
  redraw();
}

// The hour and the day are asked for only while they are looked at.
export function chooseRange(name) {
  range = name;
  askedAt = 0;
  for (const lane of lanes) update(panels.get(lane.name).node, lane);
  redraw();
  refreshRange();
}

export async function refreshRange() {
  if (range === "10m" || Date.now() - askedAt < REFRESH_MS) return;
  const wanted = range;
  askedAt = Date.now();
  try {
    const told = await ask(`history?range=${wanted}`);
    bands = told.bands;
    longer.set(wanted, new Map(Object.entries(told.lanes)));
    redraw();
  } catch {
    // The feed says what is wrong with the gateway; the next look is soon.
  }
}

export function anyHistory() {
  return [...recent.values()].some((slices) => slices.some((slice) => slice.requests > 0));
}

const named = (promise) => ({ ...promise, label: `p${promise.percentile}` });

// Heat is kept of two figures; first tokens stand for what comes before them.
const heatFigure = () => (figure === "e2e" ? "e2e" : "ttft");
const heatOf = (slice) => (figure === "e2e" ? slice.heat_e2e ?? slice.heat : slice.heat) ?? [];

const promisesOf = (lane) => lane.promises.filter((promise) => promise.figure === figure);

// -- a panel -----------------------------------------------------------------------------------------------------

function make(lane) {
  const id = `lane-${panels.size}-${lane.name}`;
  const panel = {
    name: lane.name,
    badge: el("span", { class: "state" }),
    facts: el("p", { class: "facts" }),
    cells: new Map(SHOWN.map((name) => [name, figureCell(name)])),
    lines: svg("svg", { class: "lines", "aria-hidden": true }),
    heat: el("canvas", { class: "heat", "aria-hidden": true }),
    heatLow: el("span", { class: "edge low" }),
    heatHigh: el("span", { class: "edge high" }),
    traffic: svg("svg", { class: "traffic", "aria-hidden": true }),
    cross: el("div", { class: "cross", hidden: true }),
    tip: el("div", { class: "tip", hidden: true }),
    rows: el("tbody"),
    caption: el("caption"),
  };
  const heat = el("div", { class: "heat-box" }, panel.heat, panel.heatLow, panel.heatHigh);
  panel.plots = el(
    "div",
    { class: "plots", tabindex: 0, role: "group", "aria-roledescription": "chart", "aria-describedby": `${id}-table` },
    panel.lines, heat, panel.traffic, panel.cross, panel.tip,
  );
  panel.plots.addEventListener("pointermove", (event) => point(panel, event));
  panel.plots.addEventListener("pointerleave", () => moveCursor(null, null));
  panel.plots.addEventListener("keydown", (event) => walk(panel, event));
  panel.plots.addEventListener("blur", () => moveCursor(null, null));
  panel.table = el(
    "div", { class: "history", role: "region", "aria-label": `${lane.name} as a table`, tabindex: scrolled() },
    el("table", { id: `${id}-table` }, panel.caption, headRow(), panel.rows),
  );
  panel.node = el(
    "article",
    { class: "lane", "aria-labelledby": id, "data-lane": lane.name },
    el("header", {}, el("h3", { id }, lane.name), panel.badge, panel.facts),
    el("dl", { class: "figures" }, ...[...panel.cells.values()].map((cell) => cell.node)),
    panel.plots, panel.table,
  );
  panels.set(lane.name, panel);
  resized.observe(panel.plots);
  return panel.node;
}

function figureCell(name) {
  const cell = { value: el("b"), served: el("small", { class: "of-served", hidden: "" }), promise: el("small") };
  cell.node = el("div", { class: name }, el("dt", {}, NAMES[name]), el("dd", {}, cell.value, cell.served, cell.promise));
  return cell;
}

function headRow() {
  const heads = ["From", "p50", "p95", "p99", "Requests", "Refused", "Failed", "Mostly"];
  return el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text))));
}

function update(_, lane) {
  const panel = panels.get(lane.name);
  set(panel.node, "data-state", lane.state);
  say(panel.badge, lane.badge);
  const doing = [`${rate(lane.requests_per_s)} req/s`, `${count(lane.running)} running`, `${count(lane.waiting)} waiting`];
  if ((lane.availability ?? 1) < 1) doing.unshift(`${answered(lane.availability)} answered`);
  if (!panel.node.hasAttribute("data-idle") || lane.running || lane.waiting) say(panel.facts, doing.join(" · "));
  const promises = promisesOf(lane);
  for (const [name, cell] of panel.cells) {
    const promise = promises.find((p) => p.label === NAMES[name]);
    const served = lane.figures[figure]?.[name];
    const all = lane.arrivals?.[figure]?.[name] ?? served;
    say(cell.value, all === "missed" ? all : duration(all));
    // Where nobody was refused, both are the same.
    say(cell.served, all === served ? "" : `served ${duration(served)}`);
    show(cell.served, all !== served);
    say(cell.promise, promise ? `≤ ${bound(promise.within_s)}` : "");
    set(cell.node, "data-state", standing(all, promise));
  }
  describe(panel, lane, promises);
}

// Of the figure that is shown, which is the last minute's: the promise's own state is judged over five, and the badge
// tells it.
function standing(value, promise) {
  if (value === "missed") return "critical";
  if (!promise || value === null || value === undefined) return "none";
  const ratio = value / promise.within_s;
  return ratio > 1 ? "critical" : ratio > 0.8 ? "warning" : "ok";
}

function describe(panel, lane, promises) {
  const told = (name) => {
    const served = duration(lane.figures[figure]?.[name]);
    const all = lane.arrivals?.[figure]?.[name] ?? null;
    return all === "missed" ? `missed, ${served} of the served` : served;
  };
  const now = PERCENTILES.map((name) => `${name} ${told(name)}`).join(", ");
  const kept = promises.map((p) => `${p.label} within ${bound(p.within_s)}: ${p.state}`).join(", ");
  const text = `${lane.name}: ${FIGURES[figure]}, last ${RANGES[range].words}. Now ${now}. ${kept || "Nothing promised"}. Arrow keys walk through it.`;
  set(panel.plots, "aria-label", text);
  say(panel.caption, `${lane.name}: ${FIGURES[figure]} in slices of ${bound(step())}, latest first`);
}

// -- drawing -----------------------------------------------------------------------------------------------------

export function redraw() {
  const all = [...history().values()].flat();
  const newest = Math.max(0, ...all.map((slice) => slice.at));
  const oldest = Math.min(newest, ...all.filter((slice) => slice.requests > 0).map((slice) => slice.at));
  for (const panel of panels.values()) draw(panel, oldest, newest);
  // Two in a row; where one is left over, it takes the row.
  const busy = [...byId("lane-list").children].filter((node) => !node.hasAttribute("data-idle"));
  busy.forEach((node, i) => set(node, "data-wide", busy.length % 2 && i === busy.length - 1 ? "" : null));
}

function draw(panel, oldest, newest) {
  const lane = lanes.find((l) => l.name === panel.name);
  const width = panel.plots.clientWidth || panel.node.clientWidth;
  if (!lane || !newest || !width) return;
  const span = new Span(oldest, newest, RANGES[range], width);
  const slices = (history().get(panel.name) ?? []).filter((slice) => span.covers(slice));
  const busy = slices.some((slice) => slice.requests > 0) || lane.running > 0 || lane.waiting > 0;
  set(panel.node, "data-idle", busy ? null : "");
  if (!busy) say(panel.facts, `no requests in the last ${RANGES[range].words}`);
  panel.span = span;
  panel.slices = slices;
  fillTable(panel);
  if (!busy) return;
  drawLines(panel.lines, span, HEIGHT, slices, figure, promisesOf(lane));
  const [first, last] = drawHeat(panel.heat, span, HEAT, slices, heatOf);
  say(panel.heatHigh, bands && last >= 0 ? edge(last) : "");
  say(panel.heatLow, bands && last >= 0 ? edge(first - 1) : "");
  drawTraffic(panel.traffic, span, TRAFFIC, slices);
  mark(panel);
}

// Bands end where `bands` says; the last may have no end.
function edge(band) {
  if (band < 0) return "0";
  return band < bands.length ? axis(bands[band]) : `> ${axis(bands.at(-1))}`;
}

function usual(slice) {
  const heat = heatOf(slice);
  const most = Math.max(0, ...heat);
  if (!most || !bands) return NONE;
  const band = heat.indexOf(most);
  return `${edge(band - 1)} – ${edge(band)}`;
}

function fillTable(panel) {
  const slices = [...panel.slices].reverse();
  keyed(panel.rows, slices, (slice) => slice.at, () => {
    return el("tr", {}, el("th", { scope: "row" }), ...Array.from({ length: 7 }, () => el("td")));
  }, (row, slice) => {
    const values = slice[figure] ?? [null, null, null];
    const cells = [range === "24h" ? clock(slice.at) : exactClock(slice.at), ...values.map(duration), count(slice.requests), count(slice.refused)];
    [...cells, count(slice.failed), usual(slice)].forEach((text, i) => say(row.children[i], text));
  });
}

// -- pointing at a moment ------------------------------------------------------------------------------------------

function point(panel, event) {
  if (!panel.span) return;
  const x = event.clientX - panel.plots.getBoundingClientRect().left;
  const wall = panel.span.begin + (x - LEFT) / panel.span.perSecond;
  const slice = sliceAt(panel, wall);
  moveCursor(panel, slice ? slice.at + step() / 2 : null);
}

// Lanes' slices need not begin together.
function sliceAt(panel, wall) {
  return wall === null ? undefined : panel.slices?.find((slice) => slice.at <= wall && wall < slice.at + step());
}

function walk(panel, event) {
  const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -6, PageDown: 6, Home: -Infinity, End: Infinity };
  if (event.key === "Escape") moveCursor(null, null);
  if (!(event.key in moves) || !panel.slices?.length) return;
  event.preventDefault();
  const last = panel.slices.length - 1;
  const now = panel.slices.indexOf(sliceAt(panel, cursor));
  const next = Math.min(last, Math.max(0, (now < 0 ? last + 1 : now) + moves[event.key]));
  moveCursor(panel, panel.slices[next].at + step() / 2);
  say(byId("spoken"), facts(panel.slices[next]).map(([name, text]) => `${name} ${text}`).join(", "));
}

function moveCursor(panel, wall) {
  if (wall === cursor && panel === pointed) return;
  cursor = wall;
  pointed = panel;
  for (const each of panels.values()) mark(each);
}

// The moment is marked in every lane, for comparison; it is told in figures where one points.
function mark(panel) {
  const slice = sliceAt(panel, cursor);
  show(panel.cross, Boolean(slice));
  show(panel.tip, Boolean(slice) && panel === pointed);
  if (!slice) return;
  const x = panel.span.middle(slice);
  style(panel.cross, "transform", `translateX(${x.toFixed(1)}px)`);
  if (panel !== pointed) return;
  const left = x > panel.span.width / 2;
  style(panel.tip, "transform", `translateX(${x.toFixed(1)}px) translateX(${left ? "calc(-100% - 8px)" : "8px"})`);
  keyed(panel.tip, facts(slice), ([name]) => name, ([name]) => el("p", { class: name }, el("span", {}, name), el("b")), (node, [, text]) => {
    say(node.lastChild, text);
  });
}

function facts(slice) {
  return [
    ["from", exactClock(slice.at)],
    ...PERCENTILES.map((name, i) => [name, duration(slice[figure]?.[i])]),
    ["requests", count(slice.requests)],
    ["refused", count(slice.refused)],
    ["failed", count(slice.failed)],
  ];
}
