// The slowest requests, and where the milliseconds of one of them went.

import { byId, el, keyed, say, set, show, style } from "./dom.js";
import { ask } from "./feed.js";
import { count, duration, exactClock, NONE, share, span, words } from "./format.js";

export function takeSlowest(slowest) {
  keyed(byId("slow-rows"), slowest, (s) => s.id, (s) => {
    const button = el("button", { type: "button", class: "plain", "aria-haspopup": "dialog" });
    const cells = ["e2e", "ttft", "strain", "lane", "tenant", "outcome", "ago"].map((kind) => el("td", { class: `c-${kind}` }));
    return el("tr", { "data-request": s.id, onclick: () => open(s.id) }, el("th", { scope: "row", class: "c-why" }, button), ...cells);
  }, (row, s) => {
    const [why, e2e, ttft, strain, lane, tenant, outcome, ago] = row.children;
    say(why.firstChild, s.headline || "no reason found");
    set(why.firstChild, "title", `Request ${s.id}`);
    say(e2e, duration(s.e2e_s));
    say(ttft, duration(s.ttft_s));
    say(strain, times(s.strain));
    set(strain, "data-state", s.strain > 1 ? "critical" : "ok");
    say(lane, s.lane);
    say(tenant, s.tenant);
    set(tenant, "title", s.tenant);
    say(outcome, s.outcome.replaceAll("_", " "));
    set(outcome, "data-state", s.outcome === "completed" ? "ok" : "critical");
    say(ago, span(s.ago_s));
  });
  show(byId("no-slow"), slowest.length === 0);
  show(byId("slow-table"), slowest.length > 0);
}

// 3.4×: the request took so many times what its lane promises, for the promise that it strained most.
function times(strain) {
  if (!strain) return NONE;
  return strain >= 9.95 ? `${count(Math.round(strain))}×` : `${strain.toFixed(1)}×`;
}

// -- one request -----------------------------------------------------------------------------------------------------

const dialog = () => byId("request");
let asked = null;

export function setUp() {
  byId("request-close").addEventListener("click", () => dialog().close());
  dialog().addEventListener("click", (event) => {
    if (event.target === dialog()) dialog().close(); // beside it
  });
  dialog().addEventListener("close", () => {
    asked = null;
    if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  });
  byId("find").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = byId("find-id").value.trim();
    if (id) open(id);
  });
  addEventListener("hashchange", openNamed);
  openNamed();
}

// The address names the request, so that a slow one can be sent to somebody.
function openNamed() {
  const id = new URLSearchParams(location.hash.slice(1)).get("request");
  if (id && id !== asked) open(id);
}

export async function open(id) {
  asked = id;
  say(byId("request-title"), `Request ${id}`);
  byId("request-body").replaceChildren(el("p", { class: "muted" }, "Asking the gateway …"));
  if (!dialog().open) dialog().showModal();
  history.replaceState(null, "", `#request=${encodeURIComponent(id)}`);
  let parts;
  try {
    parts = view(await ask(`requests/${encodeURIComponent(id)}`));
  } catch (error) {
    parts = [el("p", { role: "alert" }, `It can't be explained: ${error.message}.`)];
  }
  if (asked === id) byId("request-body").replaceChildren(...parts);
}

export function view(answer) {
  const record = answer.record ?? answer;
  const why = answer.explanation ?? answer;
  const headline = why.headline ?? answer.headline;
  return [
    headline ? el("p", { class: "headline" }, headline) : null,
    figures(record),
    waterfall(record, why.parts ?? [], why.main),
    facts(record),
    el("details", {}, el("summary", {}, "The whole record"), el("pre", { tabindex: 0 }, JSON.stringify(record, null, 2))),
  ].filter(Boolean);
}

function figures(record) {
  const shown = [
    ["End to end", duration(record.e2e_s)],
    ["First token", duration(record.ttft_s)],
    ["Per token", duration(record.tpot_s)],
    ["Longest gap", record.max_gap_s ? duration(record.max_gap_s) : NONE],
  ];
  return el("dl", { class: "figures" }, ...shown.map(([name, text]) => {
    return el("div", {}, el("dt", {}, name), el("dd", {}, el("b", {}, text)));
  }));
}

// A table, so that it reads as well as it looks: the bars only repeat what the cells say.
function waterfall(record, parts, main) {
  const total = Math.max(record.e2e_s ?? 0, 1e-6);
  const body = el("tbody");
  for (const part of parts) {
    const track = el("td", { class: "track", "aria-hidden": true });
    for (const [begins, took] of pieces(part, parts)) track.append(placed("i", begins / total, took / total));
    if (record.ttft_s > 0) track.append(placed("u", record.ttft_s / total));
    body.append(el(
      "tr", { "data-main": part.stage === main?.stage && part.at_s === main?.at_s },
      el("th", { scope: "row" }, words(part.stage)),
      track,
      el("td", { class: "took" }, duration(part.took_s)),
      el("td", { class: "share" }, share(part.took_s / total)),
      el("td", { class: "cause" }, part.cause),
    ));
  }
  const heads = ["Part", "Took", "Share", "Because"].map((text) => el("th", { scope: "col" }, text));
  heads.splice(1, 0, whenHead(record, total));
  return el("table", { class: "waterfall" }, el("caption", {}, "Where the time went"), el("thead", {}, el("tr", {}, ...heads)), body);
}

// Gaps lie within the time of decode: it is drawn around them, so that bars cover the time once.
function pieces(part, parts) {
  if (part.took_s <= 0) return [];
  const found = [];
  let at = part.at_s;
  let left = part.took_s;
  const within = parts.filter((other) => other !== part && other.took_s > 0 && other.at_s >= at).sort((a, b) => a.at_s - b.at_s);
  for (const other of within) {
    if (left < 1e-5) break;
    const piece = Math.min(left, Math.max(0, other.at_s - at));
    if (piece > 0) found.push([at, piece]);
    left -= piece;
    at = Math.max(at, other.at_s + other.took_s);
  }
  if (left >= 1e-5 || !found.length) found.push([at, left]);
  return found;
}

function placed(tag, left, width = null) {
  const node = el(tag);
  style(node, "left", `${left * 100}%`);
  if (width !== null) style(node, "width", `${width * 100}%`);
  return node;
}

// Names the dashed line: what comes before it is time to first token.
function whenHead(record, total) {
  const head = el("th", { scope: "col", class: "first" }, el("b", { class: "unseen" }, "When"));
  if (!(record.ttft_s > 0)) return head;
  const at = record.ttft_s / total;
  const mark = el("span", { class: at > 0.5 ? "before" : "" }, "first token");
  style(mark, "left", `${at * 100}%`);
  head.append(mark);
  return head;
}

function facts(record) {
  const tokens = `${count(record.prompt_tokens ?? 0)} in${record.cached_tokens ? ` (${count(record.cached_tokens)} cached)` : ""}, ${count(record.output_tokens ?? 0)} out`;
  const shown = [
    ["Arrived", record.wall ? exactClock(record.wall) : ""],
    ["Outcome", `${String(record.outcome ?? "").replaceAll("_", " ")}${record.status ? ` (${record.status})` : ""}`],
    ["Message", record.message],
    ["Lane", record.lane],
    ["Tenant", record.tenant],
    ["Model", [record.model, record.version].filter(Boolean).join(" · ")],
    ["Replica", [record.replica, record.gpu_type, record.cold ? "cold" : ""].filter(Boolean).join(" · ")],
    ["Chosen", record.reason],
    ["Tokens", tokens],
    ["Attempts", record.attempts > 1 ? count(record.attempts) : ""],
    ["Client behind", record.stalled_s ? duration(record.stalled_s) : ""],
    ["In a terminal", `headgate why ${record.id}`],
  ];
  return el("dl", { class: "facts-list" }, ...shown.filter(([, text]) => text).map(([name, text]) => {
    return el("div", {}, el("dt", {}, name), el("dd", {}, name === "In a terminal" ? el("code", {}, text) : text));
  }));
}
