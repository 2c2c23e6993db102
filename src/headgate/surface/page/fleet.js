// The replicas: all of them at a glance, worst first, and each in a row that can be sorted and searched.

import { byId, el, keyed, say, set, show, style } from "./dom.js";
import { count, exactClock, NONE, share, span } from "./format.js";

const BADNESS = { down: 3, ejected: 3, probation: 2, ramping: 1, up: 0 };
// States of its life, where the gateway starts and stops replicas by itself, that say more than its health does.
const APART = new Set(["starting", "warming", "ready", "draining", "parked", "dozing", "asleep", "waking", "stopped", "failed"]);
const MAP_FROM = 9;

const fullness = (r) => (r.limit > 0 ? r.requests / r.limit : 0);
const bad = (r) => (BADNESS[r.state] ?? 0) * 10 + Math.max(fullness(r), r.kv_ratio ?? 0);

const COLUMNS = [
  { key: "id", name: "Replica", of: (r) => r.id, up: true },
  { key: "state", name: "State", of: bad },
  { key: "requests", name: "Requests", of: fullness },
  { key: "tokens", name: "Tokens", of: (r) => r.tokens },
  { key: "kv", name: "KV", of: (r) => r.kv_ratio ?? -1 },
  { key: "batch", name: "Batch", of: (r) => r.batch_size ?? -1 },
  { key: "version", name: "Version", of: (r) => r.version ?? "", up: true },
  { key: "model", name: "Model", of: (r) => r.model ?? "", up: true },
  { key: "gpu", name: "GPU", of: (r) => r.gpu_type ?? "", up: true },
  { key: "since", name: "Since", of: (r) => r.since_s, up: true },
];

let replicas = [];
let sort = { key: "state", up: false };
let wanted = "";
const heads = new Map();

export function setUp() {
  byId("replica-map").before(el("p", { id: "fleet-wanted", class: "muted", hidden: "" }));
  byId("replica-box").after(el(
    "details", { id: "fleet-decisions", hidden: "" }, el("summary", {}, "What the fleet decided"),
    el("ol", { id: "fleet-notes", class: "notes", "aria-label": "What the fleet decided, the latest first" }),
  ));
  const row = el("tr");
  for (const column of COLUMNS) {
    const button = el("button", { type: "button", onclick: () => sortBy(column) }, column.name);
    const head = el("th", { scope: "col", class: `c-${column.key}` }, button);
    heads.set(column.key, head);
    row.append(head);
  }
  byId("replica-head").append(row);
  byId("replica-filter").addEventListener("input", (event) => {
    wanted = event.target.value.trim().toLowerCase();
    redraw();
  });
  byId("replica-map").addEventListener("click", (event) => {
    const id = event.target.dataset?.replica;
    if (id !== undefined) reveal(id);
  });
}

function sortBy(column) {
  sort = { key: column.key, up: sort.key === column.key ? !sort.up : Boolean(column.up) };
  redraw();
}

export function takeReplicas(news, fleet = null) {
  replicas = news.map((r) => (APART.has(r.lifecycle) ? { ...r, state: r.lifecycle } : r));
  redraw();
  takeFleet(fleet);
  // What is missing is shown above the lanes.
  set(byId("main"), "data-missing", replicas.some((r) => r.condition === "down" || MISSING.has(r.state)) ? "" : null);
}

const MISSING = new Set(["down", "ejected", "probation", "failed"]);

// Several pools, by name: what serves of what should.
function pools(fleet) {
  if (fleet.pools.length < 2) return "";
  return fleet.pools.map((p) => `${p.name} ${count(p.serving)} of ${count(p.wanted_serving)}`).join(", ") + ". ";
}

// How many there should be, and what was decided for which reasons.
function takeFleet(fleet) {
  show(byId("fleet-wanted"), fleet !== null);
  show(byId("fleet-decisions"), fleet !== null && fleet.notes.length > 0);
  if (fleet === null) return;
  const { serving, parked } = fleet.wanted;
  say(byId("fleet-wanted"), `Wanted: ${count(serving)} serving, ${count(parked)} parked. ${pools(fleet)}${fleet.reasons[0] ?? ""}`);
  keyed(byId("fleet-notes"), fleet.notes, (n) => `${n.wall} ${n.text}`, (n) => {
    const at = new Date(n.wall * 1000);
    return el("li", {}, el("time", { datetime: at.toISOString() }, exactClock(n.wall)), " ", el("b", {}, n.text), " ", el("small", {}, n.reasons.join(" ")));
  }, () => {});
}

function redraw() {
  const column = COLUMNS.find((c) => c.key === sort.key);
  const sign = sort.up ? 1 : -1;
  const compare = (a, b) => {
    const [x, y] = [column.of(a), column.of(b)];
    return (x < y ? -sign : x > y ? sign : 0) || (a.id < b.id ? -1 : 1);
  };
  const found = replicas.filter(matches).sort(compare);
  for (const [key, head] of heads) {
    set(head, "aria-sort", key === sort.key ? (sort.up ? "ascending" : "descending") : null);
  }
  summarise(found.length);
  drawMap();
  keyed(byId("replica-rows"), found, (r) => r.id, makeRow, updateRow);
  show(byId("replica-tools"), replicas.length > MAP_FROM);
  show(byId("no-replicas"), replicas.length === 0);
}

function matches(replica) {
  if (!wanted) return true;
  const text = [replica.id, replica.state, replica.version, replica.model, replica.gpu_type, replica.why].join(" ");
  return text.toLowerCase().includes(wanted);
}

function summarise(found) {
  const parts = [`${count(replicas.length)} ${replicas.length === 1 ? "replica" : "replicas"}`];
  for (const state of ["up", "ramping", "probation", "ejected", "down", "draining", "parked", "dozing", "asleep", "waking", "starting", "warming", "failed", "ready"]) {
    const n = replicas.filter((r) => r.state === state).length;
    if (n) parts.push(`${n} ${state}`);
  }
  if (found < replicas.length) parts.push(`${found} shown`);
  say(byId("replica-summary"), parts.join(" · "));
}

// A tile for each: filled as far as it is full. For the eye only; the rows say the same.
function drawMap() {
  const many = replicas.length > MAP_FROM;
  show(byId("replica-map"), many);
  if (!many) return;
  const worst = [...replicas].sort((a, b) => bad(b) - bad(a) || (a.id < b.id ? -1 : 1));
  keyed(byId("replica-map"), worst, (r) => r.id, () => el("i"), (tile, r) => {
    tile.dataset.replica = r.id;
    set(tile, "data-state", r.state);
    style(tile, "--fill", `${Math.round(Math.min(1, fullness(r)) * 100)}%`);
    set(tile, "title", `${r.id}: ${stateText(r)}, ${r.requests} of ${limit(r)} requests`);
  });
}

const limit = (r) => count(Math.floor(r.limit));

function stateText(r) {
  return r.state === "ramping" ? `ramping ${share(r.usable)}` : r.state;
}

function makeRow(replica) {
  const meter = () => el("td", {}, el("span", { class: "meter" }), el("span"));
  const state = el("td", {}, el("span", { class: "state" }), el("small"));
  const cells = [state, meter(), el("td"), meter(), ...Array.from({ length: 5 }, () => el("td"))];
  const row = el("tr", {}, el("th", { scope: "row" }, replica.id), ...cells);
  COLUMNS.forEach((column, i) => row.children[i].classList.add(`c-${column.key}`));
  row.dataset.replica = replica.id;
  return row;
}

function updateRow(row, r) {
  const [id, state, requests, tokens, kv, batch, version, model, gpu, since] = row.children;
  set(id, "title", r.id);
  set(row, "data-state", r.state);
  say(state.firstChild, stateText(r));
  say(state.lastChild, r.state === "up" ? "" : r.why ?? "");
  set(state, "title", r.why || null);
  style(requests.firstChild, "--fill", `${Math.min(1, fullness(r)) * 100}%`);
  say(requests.lastChild, `${count(r.requests)} of ${limit(r)}`);
  say(tokens, count(r.tokens));
  style(kv.firstChild, "--fill", `${(r.kv_ratio ?? 0) * 100}%`);
  set(kv.firstChild, "data-none", r.kv_ratio === null ? "" : null);
  say(kv.lastChild, share(r.kv_ratio));
  say(batch, count(r.batch_size));
  say(version, r.version || NONE);
  say(model, [r.model, r.emulated ? "emulated" : ""].filter(Boolean).join(" · ") || NONE);
  say(gpu, r.gpu_type || NONE);
  say(since, span(r.since_s));
}

function reveal(id) {
  const row = [...byId("replica-rows").children].find((r) => r.dataset.replica === id);
  if (!row) return;
  const box = byId("replica-box");
  box.scrollTop = row.offsetTop - box.clientHeight / 2;
  row.classList.remove("found");
  requestAnimationFrame(() => row.classList.add("found"));
}
