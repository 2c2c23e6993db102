// Three plots over the same time, ten minutes to a day, or less while there is no more: percentiles as lines, all requests as heat, traffic as bars.
//
// Latency is on a log scale: a median of 80 ms and a p99 of 4 s both have to be readable, and equal distances are equal
// factors. A line is red exactly where it is above its own promise.

import { svg } from "./dom.js";
import { bound, clock, count, exactClock } from "./format.js";

export const LEFT = 46;
const RIGHT = 6;
export const RANGES = {
  "10m": { step: 10, spans: [120, 300, 600], words: "10 minutes" },
  "1h": { step: 60, spans: [600, 1800, 3600], words: "hour" },
  "24h": { step: 900, spans: [7200, 21_600, 86_400], words: "24 hours" },
};
export const PERCENTILES = ["p50", "p95", "p99"];

export class Span {
  constructor(oldest, newest, { step, spans }, width) {
    const length = spans.find((s) => s >= newest + step - oldest - 1) ?? spans.at(-1);
    this.end = newest + step;
    this.begin = this.end - length;
    this.step = step;
    this.width = width;
    this.perSecond = (width - LEFT - RIGHT) / length;
  }

  x(wall) {
    return LEFT + (wall - this.begin) * this.perSecond;
  }

  middle(slice) {
    return this.x(slice.at + this.step / 2);
  }

  right() {
    return this.width - RIGHT;
  }

  covers(slice) {
    return slice.at >= this.begin - 0.5 && slice.at < this.end;
  }
}

// -- the latency scale -------------------------------------------------------------------------------------

function rounded(value, up) {
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = [1, 2, 5, 10];
  const unit = value / power;
  const found = up ? steps.find((s) => s >= unit - 1e-9) : steps.findLast((s) => s <= unit + 1e-9);
  return found * power;
}

function domain(values, promises) {
  const lowest = Math.min(...values);
  const highest = Math.max(...values);
  // A promise far above all that happened would press the lines flat: it is then only named at the edge.
  const near = promises.map((p) => p.within_s).filter((s) => s < highest * 12);
  const low = rounded(Math.max(1e-5, Math.min(lowest, ...near) * 0.8), false);
  const high = rounded(Math.max(highest, ...near) * 1.15, true);
  return [low, Math.max(high, low * 4)];
}

function ticks(low, high) {
  const few = Math.log10(high / low) > 2.2;
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
    for (const step of few ? [1] : [1, 2, 5]) {
      const at = step * power;
      if (at >= low * 0.999 && at <= high * 1.001) found.push(at);
    }
  }
  return found.length > 5 ? found.filter((_, i) => i % 2 === (found.length % 2 ? 0 : 1)) : found;
}

const scale = (low, high, top, bottom) => (v) =>
  bottom - (Math.log(Math.min(Math.max(v, low), high) / low) / Math.log(high / low)) * (bottom - top);

// -- percentiles ---------------------------------------------------------------------------------------------

export function drawLines(node, span, height, slices, figure, promises) {
  node.setAttribute("viewBox", `0 0 ${span.width} ${height}`);
  node.setAttribute("height", height);
  const values = slices.flatMap((s) => s[figure] ?? []).filter((v) => v !== null && v > 0);
  if (!values.length) {
    node.replaceChildren(label(LEFT + 8, height / 2 + 4, "none measured", "axis start"));
    return;
  }
  const [low, high] = domain(values, promises);
  const y = scale(low, high, 8, height - 6);
  const parts = ticks(low, high).flatMap((at) => [
    svg("line", { class: "grid", x1: LEFT, x2: span.right(), y1: y(at), y2: y(at) }),
    label(LEFT - 6, y(at) + 3.5, bound(at), "axis"),
  ]);
  parts.push(...promiseLines(span, promises, low, high, y));
  PERCENTILES.forEach((name, index) => {
    const path = pathOf(slices, span, (slice) => slice[figure]?.[index], y);
    parts.push(svg("path", { class: `line ${name}`, d: path }));
    const promise = promises.find((p) => p.label === name);
    if (promise && promise.within_s < high) parts.push(...above(node, span, name, path, y(promise.within_s)));
  });
  node.replaceChildren(...parts);
}

function pathOf(slices, span, valueOf, y) {
  let path = "";
  let last = null;
  for (const slice of slices) {
    const value = valueOf(slice);
    if (value === null || value === undefined) continue;
    const x = span.middle(slice);
    const joined = last !== null && slice.at - last <= span.step * 1.5;
    // A lone slice still shows: a line of no length with round ends is a dot.
    path += joined ? `L${x.toFixed(1)} ${y(value).toFixed(1)}` : `M${x.toFixed(1)} ${y(value).toFixed(1)}h.01`;
    last = slice.at;
  }
  return path;
}

let clips = 0;

function above(node, span, name, path, limit) {
  const id = (node.dataset[name] ??= `above-${clips++}`);
  return [
    svg("clipPath", { id }, svg("rect", { x: LEFT, y: 0, width: span.right() - LEFT, height: Math.max(0, limit) })),
    svg("path", { class: `line ${name} broken`, d: path, "clip-path": `url(#${id})` }),
  ];
}

function promiseLines(span, promises, low, high, y) {
  const groups = new Map();
  for (const promise of promises) {
    groups.set(promise.within_s, [...(groups.get(promise.within_s) ?? []), promise.label]);
  }
  const parts = [];
  let lastLabel = -100;
  for (const [within, names] of [...groups].sort(([a], [b]) => b - a)) {
    const text = `${names.join(", ")} ≤ ${bound(within)}`;
    const at = y(within);
    if (within <= high && within >= low) {
      parts.push(svg("line", { class: "promise", x1: LEFT, x2: span.right(), y1: at, y2: at }));
    }
    let place = Math.max(at < 18 ? at + 12 : at - 4, lastLabel + 12);
    if (within <= high && place > at - 3 && place < at + 11) place = at + 12; // no line through the words
    lastLabel = place;
    parts.push(label(LEFT + 4, place, within > high ? `${text} ↑` : text, "promise-label start"));
  }
  return parts;
}

function label(x, y, text, kind) {
  return svg("text", { class: kind, x, y }, text);
}

// -- heat ------------------------------------------------------------------------------------------------------

// One hue, darker for more: the order survives any kind of colour vision, and print.
export function drawHeat(canvas, span, height, slices, heatOf) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(span.width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const [first, last] = usedBands(slices, heatOf);
  if (last < first) return [first, last];
  const most = Math.max(...slices.flatMap(heatOf));
  const rows = last - first + 1;
  context.fillStyle = getComputedStyle(canvas).color;
  for (const slice of slices) {
    const left = Math.round(span.x(slice.at) * ratio) / ratio;
    const width = Math.round(span.x(slice.at + span.step) * ratio) / ratio - left;
    heatOf(slice).forEach((n, band) => {
      if (!n || band < first || band > last) return;
      context.globalAlpha = 0.1 + 0.9 * Math.sqrt(n / most);
      const top = Math.round(((last - band) * height * ratio) / rows) / ratio;
      const bottom = Math.round(((last - band + 1) * height * ratio) / rows) / ratio;
      context.fillRect(left, top, width, bottom - top);
    });
  }
  return [first, last];
}

function usedBands(slices, heatOf) {
  let first = Infinity;
  let last = -1;
  for (const slice of slices) {
    heatOf(slice).forEach((n, band) => {
      if (n) {
        first = Math.min(first, band);
        last = Math.max(last, band);
      }
    });
  }
  return [first, last];
}

// -- traffic ---------------------------------------------------------------------------------------------------

export function drawTraffic(node, span, height, slices) {
  node.setAttribute("viewBox", `0 0 ${span.width} ${height + 16}`);
  node.setAttribute("height", height + 16);
  const most = Math.max(1, ...slices.map((s) => s.requests));
  const bars = { served: "", refused: "", failed: "" };
  for (const slice of slices) {
    const left = span.x(slice.at) + 0.5;
    const width = Math.max(1, span.step * span.perSecond - 1);
    let top = height;
    const bar = (kind, n) => {
      if (n <= 0) return;
      const tall = Math.max(1.5, (n / most) * (height - 2));
      top -= tall;
      bars[kind] += `M${left.toFixed(1)} ${top.toFixed(1)}h${width.toFixed(1)}v${tall.toFixed(1)}h${-width.toFixed(1)}z`;
    };
    bar("served", slice.requests - slice.refused - slice.failed);
    bar("refused", slice.refused);
    bar("failed", slice.failed);
  }
  const parts = [
    svg("line", { class: "grid", x1: LEFT, x2: span.right(), y1: height, y2: height }),
    label(LEFT - 6, 9, `${count(most / span.step)}/s`, "axis"),
    ...Object.entries(bars).map(([kind, d]) => svg("path", { class: `bars ${kind}`, d })),
  ];
  const every = [15, 30, 60, 120, 300, 600, 1200, 3600, 7200, 10_800].find((s) => s * span.perSecond > 64) ?? 21_600;
  for (let at = Math.ceil(span.begin / every) * every; at < span.end; at += every) {
    const x = span.x(at);
    if (x < LEFT + 24 || x > span.right() - 24) continue;
    parts.push(svg("line", { class: "tick", x1: x, x2: x, y1: height, y2: height + 3 }));
    parts.push(label(x, height + 13, every < 60 ? exactClock(at) : clock(at), "axis middle"));
  }
  node.replaceChildren(...parts);
}
