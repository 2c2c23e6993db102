// Numbers as people read them. A missing figure is a dash, never a zero.

export const NONE = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const clockFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const exactFormat = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

// 0.4 ms, 4.2 ms, 182 ms, 1.24 s, 12.4 s, 124 s, 21 min: three figures at most.
export function duration(seconds) {
  if (missing(seconds)) return NONE;
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 0.00995) return `${trim((seconds * 1e3).toFixed(1))} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1e3)} ms`;
  if (seconds < 9.995) return `${trim(seconds.toFixed(2))} s`;
  if (seconds < 99.95) return `${trim(seconds.toFixed(1))} s`;
  if (seconds < 999.5) return `${Math.round(seconds)} s`;
  return span(seconds);
}

// For bounds and axes, which are round: 500 ms, 2 s, 5 min.
export function bound(seconds) {
  if (seconds >= 120 && seconds % 60 === 0) return `${seconds / 60} min`;
  if (seconds >= 100) return `${Math.round(seconds)} s`;
  return duration(seconds);
}

// For what has little room: 2 figures, one unit.
export function axis(seconds) {
  if (seconds >= 600) return `${Math.round(seconds / 60)} min`;
  return bound(Number(seconds.toPrecision(2)));
}

// How long something has been so: 4 s, 3 min, 2 h 10 min, 1 d 4 h, 5 d.
export function span(seconds) {
  if (missing(seconds)) return NONE;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  const m = Math.floor(s / 60);
  if (m < 10) return s % 60 ? `${m} min ${s % 60} s` : `${m} min`;
  if (m < 60) return `${m} min`;
  const h = Math.floor(m / 60);
  if (h < 24) return m % 60 ? `${h} h ${m % 60} min` : `${h} h`;
  return h < 48 && h % 24 ? `1 d ${h % 24} h` : `${Math.floor(h / 24)} d`;
}

export function rate(perSecond) {
  if (missing(perSecond)) return NONE;
  if (perSecond > 0 && perSecond < 0.05) return "< 0.1";
  return perSecond < 99.95 ? one.format(perSecond) : count(perSecond);
}

export function count(value) {
  if (missing(value)) return NONE;
  return value < 100_000 ? whole.format(value) : compact.format(value);
}

export function share(ratio) {
  return missing(ratio) ? NONE : `${whole.format(Math.round(ratio * 100) || 0)} %`; // not −0
}

// Of those that asked, the answered. 0.9996 is not 100 %, and of nobody it is nothing.
export function answered(ratio) {
  if (missing(ratio)) return "idle";
  if (ratio === 1) return "100 %";
  const percent = Math.min(ratio * 100, 99.99);
  return `${percent >= 99 ? percent.toFixed(2) : trim(percent.toFixed(1))} %`;
}

export const clock = (wall) => clockFormat.format(wall * 1e3);
export const exactClock = (wall) => exactFormat.format(wall * 1e3);

// Names as the gateway writes them, for people: ttft_p99 is TTFT p99.
export function words(name) {
  const known = { ttft: "TTFT", tpot: "TPOT", e2e: "end-to-end", answer: "unstreamed, per token", kv: "KV" };
  return String(name).split("_").map((word) => known[word] ?? word).join(" ");
}

function trim(digits) {
  return digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits;
}

// What a million tokens cost, with its currency: 4.12 USD.
export function money(value, currency) {
  if (missing(value)) return NONE;
  const digits = value >= 100 ? value.toFixed(0) : value >= 0.1 ? value.toFixed(2) : Number(value.toPrecision(2)).toString();
  return `${digits} ${currency}`;
}
