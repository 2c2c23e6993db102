// The whole gateway in a line of figures; what is wrong with it; and where requests wait.

import { byId, el, keyed, say, set, show, style } from "./dom.js";
import { answered, count, duration, NONE, rate, share, span, words } from "./format.js";

// -- figures -------------------------------------------------------------------------------------------------------

const sum = (lanes, name) => lanes.reduce((total, lane) => total + lane[name], 0);

const VITALS = [
  ["Requests/s", (s) => rate(s.totals.requests_per_s)],
  ["Tokens/s", (s) => count(s.totals.tokens_per_s)],
  ["Running", (s) => count(sum(s.lanes, "running"))],
  ["Waiting", (s) => count(sum(s.lanes, "waiting"))],
  ["Answered", (s) => answered(s.totals.availability), (s) => missed(s.totals.availability ?? 1)],
  ["Refused/s", (s) => rate(s.totals.refusals_per_s), (s) => (s.totals.refusals_per_s > 0 ? "warning" : "ok")],
  ["Utilisation", (s) => share(s.totals.utilisation), (s) => strain(s.totals.utilisation, 0.65, 0.8)],
  ["Loop lag p99", (s) => duration(s.totals.loop_lag_p99_s), (s) => strain(s.totals.loop_lag_p99_s, 0.02, 0.1)],
  ["Cost / 1k tokens", (s) => money(s.totals.cost_per_1000_tokens)],
  ["Decode saved", (s) => `${count(saved(s))} tokens`],
  ["Requests so far", (s) => count(s.totals.requests)],
];

// What caps, time limits and the end of repetition left undecoded since the start; of caps nobody knows.
const saved = (s) => Object.values(s.totals.ended_early ?? {}).reduce((total, by) => total + by.saved_tokens, 0);
const missed = (ratio) => (ratio < 0.95 ? "critical" : ratio < 0.999 ? "warning" : "ok");
const strain = (value, warning, critical) => (value >= critical ? "critical" : value >= warning ? "warning" : "ok");
const money = (value) => (value === null || value === undefined ? NONE : Number(value.toPrecision(3)).toString());

export function takeVitals(snapshot) {
  const absent = new Set();
  if (snapshot.totals.cost_per_1000_tokens === null) absent.add("Cost / 1k tokens");
  if (!saved(snapshot)) absent.add("Decode saved");
  const shown = VITALS.filter(([name]) => !absent.has(name));
  keyed(byId("vitals"), shown, ([name]) => name, ([name]) => {
    return el("div", {}, el("dt", {}, name), el("dd"));
  }, (node, [, text, state]) => {
    say(node.lastChild, text(snapshot));
    set(node, "data-state", state?.(snapshot) ?? "ok");
  });
}

// -- alerts and findings -------------------------------------------------------------------------------------------

const RANK = { critical: 0, warning: 1 };
const rank = (item) => RANK[item.severity] ?? 2;
const EVIDENCE = 6;
let announced = null;

let outage = "";

// Nothing can be answered: that is said before anything else.
export function takeOutage(why) {
  outage = why;
  show(byId("outage"), Boolean(why));
  say(byId("outage-why"), why);
}

export function takeAlerts({ alerts, lanes }) {
  const first = (alert) => (alert.name === "no_usable_replica" ? 0 : 1);
  const sorted = [...alerts].sort((a, b) => rank(a) - rank(b) || first(a) - first(b) || a.since_s - b.since_s);
  keyed(byId("alert-list"), sorted, keyOf, () => {
    return el("li", {}, el("span", { class: "state" }), el("b"), el("small"), el("p"));
  }, (node, alert) => {
    set(node, "data-state", alert.severity);
    const [badge, lane, since, message] = node.children;
    say(badge, alert.severity);
    say(lane, alert.lane || "all lanes");
    say(since, `for ${span(alert.since_s)}`);
    say(message, alert.message);
  });
  const idle = lanes.every((lane) => lane.state === "idle");
  say(byId("no-alerts"), idle ? "None. No requests in five minutes to judge by." : "None. Every promise is being kept.");
  show(byId("no-alerts"), !alerts.length);
  announce(sorted);
  const title = alerts.length ? `(${alerts.length}) Headgate` : "Headgate";
  document.title = outage ? `Outage: ${title}` : title;
}

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

export function takeFindings(findings) {
  const sorted = [...findings].sort((a, b) => rank(a) - rank(b));
  keyed(byId("finding-list"), sorted, (f) => `${f.lane} ${f.figure} ${f.cause}`, () => {
    return el("li", {}, el("p", {}, el("b"), " ", el("span")), el("p", { class: "knob" }), el("dl", { class: "evidence" }));
  }, (node, finding) => {
    set(node, "data-state", finding.severity);
    const [cause, knob, evidence] = node.children;
    say(cause.firstChild, [finding.lane, words(finding.figure)].filter(Boolean).join(" "));
    say(cause.lastChild, finding.cause);
    say(knob, finding.knob);
    show(knob, Boolean(finding.knob));
    keyed(evidence, Object.entries(finding.evidence ?? {}).slice(0, EVIDENCE), ([name]) => name, ([name]) => {
      return el("div", {}, el("dt", {}, words(name.replace(/_s$/, ""))), el("dd"));
    }, (fact, [name, value]) => say(fact.lastChild, evident(name, value)));
  });
  show(byId("findings"), findings.length > 0);
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
