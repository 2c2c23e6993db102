// What each tenant's p99 is made of, and which tenants it owes that to. Asked for now and then, for it takes a search.

import { byId, el, keyed, say, set, show, style } from "./dom.js";
import { ask } from "./feed.js";
import { count, duration, share } from "./format.js";

const EVERY_MS = 15_000;
const MOST = 8;
let by = "ttft";
let told = null;
let asking = false;
let askedAt = 0;

export function chooseBlame(value) {
  by = value;
  askedAt = 0;
  refresh();
}

// Called with every snapshot; asks only when it is due and can be seen.
export async function refresh(busy = true) {
  if (asking || document.hidden || !busy || Date.now() - askedAt < EVERY_MS) return;
  asking = true;
  try {
    const news = await ask(`blame?by=${by}`);
    askedAt = Date.now();
    told = news;
    draw();
  } catch {
    askedAt = Date.now(); // the feed says what is wrong with the gateway
  } finally {
    asking = false;
  }
  if (told?.by !== by) refresh();
}

function draw() {
  const tails = [...told.tenants].sort((a, b) => b.others_s - a.others_s || b.p99_s - a.p99_s).slice(0, MOST);
  show(byId("blame"), told.tenants.length > 0);
  const alone = told.tenants.length < 2;
  say(byId("no-blame"), alone ? "One tenant only: what it waits for is its own, or a replica's." : "");
  show(byId("no-blame"), alone);
  const most = Math.max(...tails.map((tail) => tail.p99_s), 1e-9);
  keyed(byId("blame-rows"), tails, (tail) => tail.tenant, (tail) => {
    const bar = el("span", { class: "stack", "aria-hidden": true }, ...["own", "others", "none"].map((kind) => el("i", { class: kind })));
    return el("tr", {}, el("th", { scope: "row" }, tail.tenant), el("td"), el("td", { class: "c-made" }, bar, el("span", { class: "unseen" })), el("td", { class: "c-who" }));
  }, (row, tail) => {
    const [name, p99, made, who] = row.children;
    set(name, "title", `${count(tail.requests)} requests; ${tail.explained} around the p99 were explained, such as ${tail.example}`);
    say(p99, duration(tail.p99_s));
    const parts = [tail.own_s, tail.others_s, tail.none_s];
    parts.forEach((seconds, i) => style(made.firstChild.children[i], "width", `${(seconds / most) * 100}%`));
    say(made.lastChild, `own ${duration(tail.own_s)}, others ${duration(tail.others_s)}, no tenant ${duration(tail.none_s)}`);
    const costs = told.costs.filter((cost) => cost.whom === tail.tenant && cost.share >= 0.01);
    say(who, costs.length ? costs.map((cost) => `${cost.who} ${duration(cost.seconds)} (${share(cost.share)})`).join(", ") : "none");
    set(who, "data-none", costs.length ? null : "");
  });
}
