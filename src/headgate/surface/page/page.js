// The page: takes what the feed brings, and says plainly when it brings nothing.

import * as blame from "./blame.js";
import { byId, say, set, show } from "./dom.js";
import { Feed } from "./feed.js";
import * as fleet from "./fleet.js";
import { span } from "./format.js";
import * as keys from "./keys.js";
import { anyHistory, chooseFigure, chooseRange, chooseView, redraw, refreshRange, takeHistory, takeLanes } from "./lanes.js";
import { takeQueues, takeTroubles, takeVerdict, takeVitals } from "./news.js";
import * as batches from "./batches.js";
import * as rollout from "./rollout.js";
import * as slow from "./slow.js";
import * as trial from "./trial.js";

let latest = null;
let heardAt = 0;
let link = { state: "connecting", detail: {} };

// -- what comes in ---------------------------------------------------------------------------------------------------

function take(event) {
  if (event.history) takeHistory(event.history);
  if (!event.snapshot) return;
  const first = latest === null;
  latest = event.snapshot;
  heardAt = Date.now();
  draw();
  if (first) redraw();
}

function draw() {
  if (latest === null || document.hidden) return;
  const snapshot = latest;
  say(byId("version"), snapshot.version);
  say(byId("uptime"), `up ${span(snapshot.uptime_s)}`);
  takeVerdict(snapshot);
  takeVitals(snapshot);
  takeTroubles(snapshot);
  takeLanes(snapshot);
  takeQueues(snapshot.lanes);
  fleet.takeReplicas(snapshot.replicas, snapshot.fleet ?? null);
  rollout.takeRollouts(snapshot.rollouts);
  batches.takeBatches(snapshot.batches);
  slow.takeSlowest(snapshot.slowest);
  trial.takeChoices(snapshot);
  welcome(snapshot);
  refreshRange();
  blame.refresh(snapshot.totals.requests > 0);
  show(byId("loading"), false);
  show(byId("main"), true);
}

// Nothing has been asked yet: say how to ask.
function welcome(snapshot) {
  const busy = snapshot.totals.requests > 0 || anyHistory() || snapshot.lanes.some((lane) => lane.running || lane.waiting);
  show(byId("empty"), !busy);
  set(byId("main"), "data-empty", busy ? null : "");
  if (busy) return;
  const ready = snapshot.replicas.filter((replica) => replica.usable > 0);
  say(byId("empty-why"), ready.length ? "Ask something, and this page fills up:" : "No replica is ready yet; requests wait for one. Then:");
  const model = ready.find((replica) => replica.model)?.model.split(",")[0] ?? "default";
  const body = JSON.stringify({ model, stream: true, messages: [{ role: "user", content: "Hello" }] });
  const quoted = body.replaceAll("'", "'\\''");
  const bearer = snapshot.keyed ? ` \\\n  -H "authorization: Bearer $OPENAI_API_KEY"` : "";
  say(byId("try"), `curl ${location.origin}/v1/chat/completions \\\n  -H 'content-type: application/json'${bearer} \\\n  -d '${quoted}'`);
}

// -- the link to the gateway -------------------------------------------------------------------------------------------

const LINKS = { connecting: "connecting", live: "connected", gone: "no answer", locked: "locked", paused: "paused" };

function linked(state, detail) {
  link = { state, detail };
  set(document.documentElement, "data-link", state);
  say(byId("link"), LINKS[state]);
  const locked = byId("lock");
  if (state === "locked") {
    say(byId("loading"), "Waiting for the admin key.");
    say(byId("lock-why"), detail.rejected ? `Not with that key: ${detail.message}.` : "");
    if (!locked.open) locked.showModal();
  } else if (state === "live" && locked.open) {
    locked.close();
  }
  show(byId("gone"), state === "gone");
  set(byId("main"), "data-stale", state === "gone" || state === "paused" ? "" : null);
  if (state === "gone") document.title = "No answer from the gateway – Headgate";
  if (state === "gone") say(byId("gone-why"), `${detail.why}.`);
  age();
}

// Its text changes every second, so it is not the part that is spoken.
function age() {
  if (link.state !== "gone") return;
  const left = Math.max(0, Math.ceil((link.detail.retryAt - Date.now()) / 1000));
  const seen = heardAt ? `What you see is ${span((Date.now() - heardAt) / 1000)} old. ` : "";
  say(byId("gone-age"), `${seen}${left ? `Trying again in ${left} s.` : "Trying again …"}`);
}

// -- controls ----------------------------------------------------------------------------------------------------------

function choices(name, chosen) {
  for (const input of document.querySelectorAll(`input[name="${name}"]`)) {
    input.addEventListener("change", () => chosen(input.value));
  }
}

function turnTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("headgate-theme", document.documentElement.dataset.theme);
  } catch {
    // Then it is chosen for this visit only.
  }
  nameTheme();
  redraw();
}

function nameTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = document.documentElement.dataset.theme ?? system;
  set(byId("theme"), "aria-label", `Switch to ${now === "dark" ? "light" : "dark"} colours`);
}

async function copyCommand() {
  try {
    await navigator.clipboard.writeText(byId("try").textContent);
    say(byId("copy"), "Copied");
  } catch {
    getSelection().selectAllChildren(byId("try"));
    say(byId("copy"), "Selected");
  }
}

// ------------------------------------------------------------------------------------------------------------------------

const feed = new Feed(take, linked);

fleet.setUp();
rollout.setUp();
batches.setUp();
slow.setUp();
trial.setUp();
keys.setUp({
  "/": () => byId("find-id").focus(),
  t: trial.openTrial,
  d: turnTheme,
  c: () => keys.choose("view", document.documentElement.dataset.view === "chart" ? "table" : "chart"),
  1: () => keys.choose("range", "10m"),
  2: () => keys.choose("range", "1h"),
  3: () => keys.choose("range", "24h"),
});
choices("figure", chooseFigure);
choices("range", chooseRange);
choices("view", chooseView);
choices("blame", blame.chooseBlame);
byId("theme").addEventListener("click", turnTheme);
byId("copy").addEventListener("click", copyCommand);
byId("again").addEventListener("click", () => feed.connect());
byId("lock-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const input = byId("key");
  if (input.value.trim()) feed.unlock(input.value.trim());
  input.value = "";
});
byId("lock").addEventListener("close", () => {
  if (link.state === "locked") byId("lock").showModal(); // there is nothing to see without it
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  nameTheme();
  redraw();
});
document.addEventListener("visibilitychange", draw);
setInterval(age, 500);
nameTheme();
feed.connect();
