// The verdict, the whole gateway in a line of figures, what is wrong with it and why, and where requests wait.

import { byId, el, keyed, say, set, show, style } from "./dom.js";
import { answered, count, duration, money, NONE, rate, share, span, words } from "./format.js";

// -- the verdict ---------------------------------------------------------------------------------------------------

// The gateway finds the words, so that the page, the terminal and the alerts say the same.
export function takeVerdict({ verdict, replicas }) {
  set(byId("verdict"), "data-state", verdict.level);
  say(byId("verdict-text"), verdict.text);
  document.title = `${verdict.text} – Headgate`;
  const serving = [listed(replicas.flatMap((r) => (r.model ? r.model.split(", ") : []))), listed(replicas.map((r) => r.version), "version ")];
  if (replicas.some((r) => r.emulated)) serving.push("emulated: no model runs");
  say(byId("serving"), serving.filter(Boolean).join(" · "));
}

const NAMED = 2;

function listed(names, before = "") {
  const known = [...new Set(names.filter(Boolean))].sort();
  if (!known.length) return "";
  const more = known.length > NAMED ? ` and ${known.length - NAMED} more` : "";
  return `${before}${known.slice(0, NAMED).join(", ")}${more}`;
}

// -- figures -------------------------------------------------------------------------------------------------------

const sum = (lanes, name) => lanes.reduce((total, lane) => total + lane[name], 0);

const VITALS = [
  ["Answered", (s) => answered(s.totals.availability), (s) => missed(s.totals.availability ?? 1)],
  ["Failed/s", (s) => rate(s.totals.failed_per_s), (s) => (s.totals.failed_per_s > 0 ? "critical" : "ok")],
  ["Refused/s", (s) => rate(s.totals.refused_per_s), (s) => (s.totals.refused_per_s > 0 ? "warning" : "ok")],
  ["Requests/s", (s) => rate(s.totals.requests_per_s)],
  ["Tokens/s", (s) => count(s.totals.tokens_per_s)],
  ["Running", (s) => count(sum(s.lanes, "running"))],
  ["Waiting", (s) => count(sum(s.lanes, "waiting"))],
  ["Utilisation", (s) => share(s.totals.utilisation), (s) => strain(s.totals.utilisation, 0.65, 0.8)],
  ["Cost / 1M tokens", (s) => money(s.totals.cost_per_million_tokens, s.totals.currency)],
  ["Tokens not decoded", (s) => count(saved(s))],
  ["Loop lag p99", (s) => duration(s.totals.loop_lag_p99_s), (s) => strain(s.totals.loop_lag_p99_s, 0.02, 0.1)],
];
const ABOUT = {
  Answered: "Of the requests of the last minute, those that got a whole answer. Refused and failed ones count against it; clients' own errors do not",
  "Tokens not decoded": "Since the start: what time limits and the end of repetition left undecoded",
  "Loop lag p99": "How late the gateway's own event loop is",
};

// What caps, time limits and the end of repetition left undecoded since the start; of caps that is unknown.
const saved = (s) => Object.values(s.totals.ended_early ?? {}).reduce((total, by) => total + by.saved_tokens, 0);
const missed = (ratio) => (ratio < 0.95 ? "critical" : ratio < 0.999 ? "warning" : "ok");
const strain = (value, warning, critical) => (value >= critical ? "critical" : value >= warning ? "warning" : "ok");

export function takeVitals(snapshot) {
  const absent = new Set();
  if (snapshot.totals.cost_per_million_tokens === null) absent.add("Cost / 1M tokens");
  if (!saved(snapshot)) absent.add("Tokens not decoded");
  const shown = VITALS.filter(([name]) => !absent.has(name));
  keyed(byId("vitals"), shown, ([name]) => name, ([name]) => {
    return el("div", { title: ABOUT[name] ?? null }, el("dt", {}, name), el("dd"));
  }, (node, [, text, state]) => {
    say(node.lastChild, text(snapshot));
    set(node, "data-state", state?.(snapshot) ?? "ok");
  });
}

// -- what is wrong -------------------------------------------------------------------------------------------------

let announced = null;

export function takeTroubles({ troubles, alerts, verdict }) {
  keyed(byId("trouble-list"), troubles, (t) => `${t.lane} ${t.subject} ${t.alerts[0] ?? t.text}`, () => {
    return el(
      "li", {}, el("span", { class: "state" }), el("b"), el("small"), el("p"), el("p", { class: "because" }),
      el("p", { class: "knob" }), el("dl", { class: "evidence" }),
    );
  }, (node, trouble) => {
    const [badge, lane, since, text, because, knob, evidence] = node.children;
    set(node, "data-state", trouble.severity);
    say(badge, trouble.severity);
    say(lane, trouble.lane || "all lanes");
    say(since, trouble.since_s === null ? "" : `for ${span(trouble.since_s)}`);
    say(text, sentence(trouble.text));
    say(because, trouble.cause ? `Because ${trouble.cause}.` : "");
    show(because, Boolean(trouble.cause));
    say(knob, trouble.knob);
    show(knob, Boolean(trouble.knob));
    keyed(evidence, Object.entries(trouble.evidence), ([name]) => name, ([name]) => {
      return el("div", {}, el("dt", {}, words(name.replace(/_s$/, ""))), el("dd"));
    }, (fact, [name, value]) => say(fact.lastChild, evident(name, value)));
  });
  say(byId("no-troubles"), CALM[verdict.level] ?? "No alert has been raised.");
  show(byId("no-troubles"), !troubles.length);
  announce(alerts);
}

const CALM = {
  ok: "Nothing. Every promise is being kept.",
  idle: "Nothing to judge by: no requests in five minutes.",
};

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
const keyOf = (alert) => `${alert.name} ${alert.lane}`;

// Only what has changed is spoken: the list itself is rewritten every second.
function announce(alerts) {
  const now = new Map(alerts.map((alert) => [keyOf(alert), alert]));
  if (announced) {
    const begun = alerts.filter((alert) => !announced.has(keyOf(alert)));
    const over = [...announced.values()].filter((alert) => !now.has(keyOf(alert)));
    const said = [
      ...begun.map((alert) => `${alert.severity}: ${alert.lane || "all lanes"}, ${alert.message}`),
      ...over.map((alert) => `Over: ${alert.lane || "all lanes"}, ${words(alert.name)}`),
    ];
    if (said.length) say(byId("announcer"), said.join(". "));
  }
  announced = now;
}

function evident(name, value) {
  if (typeof value !== "number") return String(value);
  if (/_s$/.test(name) && !/_per_s$/.test(name)) return duration(value);
  if (/(ratio|share|utilisation)$/.test(name)) return share(value);
  return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(3)));
}

// -- queues --------------------------------------------------------------------------------------------------------

export function takeQueues(lanes) {
  const longest = Math.max(1, ...lanes.map((lane) => lane.waiting));
  keyed(byId("queue-rows"), lanes, (lane) => lane.name, (lane) => {
    const meter = el("td", {}, el("span", { class: "meter" }), el("span"));
    const more = ["running", "wait", "refused", "failed", "little"].map((kind) => el("td", { class: `c-${kind}` }));
    return el("tr", {}, el("th", { scope: "row" }, lane.name), meter, ...more);
  }, (row, lane) => {
    const [, waiting, running, p95, refused, failed, little] = row.children;
    set(row, "data-idle", lane.state === "idle" ? "" : null);
    style(waiting.firstChild, "--fill", `${(lane.waiting / longest) * 100}%`);
    say(waiting.lastChild, count(lane.waiting));
    say(running, count(lane.running));
    say(p95, duration(lane.figures.queue?.p95));
    say(refused, rate(lane.refused_per_s));
    set(refused, "data-state", lane.refused_per_s > 0 ? "warning" : "ok");
    say(failed, rate(lane.failed_per_s));
    set(failed, "data-state", lane.failed_per_s > 0 ? "critical" : "ok");
    say(little, littlesLaw(lane.little));
    set(little, "title", `L ${figure(lane.little?.l)} = λ ${figure(lane.little?.lambda)}/s × W ${duration(lane.little?.w)}`);
  });
}

const figure = (value) => (value === null || value === undefined ? NONE : Number(value.toPrecision(3)));
const littlesLaw = (little) => (little?.residual === null || little?.residual === undefined ? NONE : share(little.residual));
