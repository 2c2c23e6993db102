// Versions: who gets what, and how a new one compares.

import { byId, el, keyed, say, set, show } from "./dom.js";
import { post } from "./feed.js";
import { count, duration, share, span } from "./format.js";

const FIGURES = { ttft: "TTFT", tpot: "TPOT", e2e: "End to end", queue: "Queue", error: "Failed", output: "Output", quality: "Score" };

const UNDER_WAY = new Set(["canary", "soaking", "held", "split", "shadow"]);
const UNDO = new Set([...UNDER_WAY, "promoted"]);

export function setUp() {
  byId("queues").after(el(
    "section", { id: "rollouts", class: "panel", "aria-labelledby": "rollouts-title", hidden: "" },
    el("h2", { id: "rollouts-title" }, "Versions"),
    el("ul", { id: "rollout-list", class: "finding-list" }),
    el("p", { id: "rollout-said", role: "status", class: "muted" }),
  ));
}

async function act(name, verb) {
  try {
    const { step } = await post(`rollout/${encodeURIComponent(name)}/${verb}`);
    say(byId("rollout-said"), `${name}: ${step.reason}.`);
  } catch (error) {
    say(byId("rollout-said"), `${name}: ${error.message}.`);
  }
}

export function takeRollouts(models) {
  const any = Boolean(models?.length);
  show(byId("rollouts"), any);
  if (any) keyed(byId("rollout-list"), models, (model) => model.name, make, update);
}

function make({ name }) {
  const button = (verb, label) => el("button", { type: "button", "data-verb": verb, onclick: () => act(name, verb) }, label);
  return el(
    "li", {},
    el("h3", {}), el("p", { class: "stage" }), el("p", { class: "verdict muted" }),
    el("table", { class: "versions" },
      el("thead", {}, el("tr", {}, ...["Version", "Model", "Share", "Running", "Waiting"].map(column))), el("tbody", {})),
    el("table", { class: "compared" },
      el("caption", { class: "unseen" }, "The new version beside the old one"),
      el("thead", {}, el("tr", {}, ...["Figure", "Old", "New", "Ratio", "Worse?", "Fine?"].map(column))), el("tbody", {})),
    el("p", {}, button("rollback", "Roll back"), " ", button("promote", "Promote")),
  );
}

const column = (title) => el("th", { scope: "col" }, title);

function update(node, model) {
  const [title, stage, verdict, versions, compared, buttons] = node.children;
  show(buttons.children[0], UNDO.has(model.stage));
  show(buttons.children[1], UNDER_WAY.has(model.stage));
  say(title, model.name);
  set(node, "data-stage", model.stage);
  say(stage, told(model));
  say(verdict, model.verdict ? `${model.verdict.state}: ${model.verdict.reason}` : "");
  show(verdict, Boolean(model.verdict));
  rows(versions.tBodies[0], model.versions, (version) => version.name, (version) => [
    version.name, version.model, share(version.share),
    version.room ? `${version.running} of ${version.room}` : "no replica", count(version.waiting),
  ]);
  const seen = model.rows.filter((row) => row.baseline !== null && row.canary !== null);
  show(compared, seen.length > 0);
  rows(compared.tBodies[0], seen, (row) => `${row.figure} ${row.percentile}`, (row) => [
    `${FIGURES[row.figure] ?? row.figure}${row.percentile ? ` p${row.percentile}` : ""}`,
    figure(row.figure, row.baseline), figure(row.figure, row.canary),
    row.baseline > 0 ? (row.canary / row.baseline).toFixed(2) : "–",
    share(row.worse), row.fine === null ? "" : share(row.fine),
  ]);
}

function told(model) {
  const stage = model.stage.replaceAll("_", " ");
  if (model.candidate === null || model.stage === "stable") return stage;
  const parts = [`${model.candidate} ${stage}, ${share(model.share)}`];
  if (model.since_s !== null) parts.push(`for ${span(model.since_s)}`);
  if (model.soak_left_s) parts.push(`${span(model.soak_left_s)} of the soak left`);
  if (model.requests) parts.push(`${count(model.samples)} of its requests seen, ${count(model.requests)} in all`);
  return parts.join(", ");
}

function rows(body, items, keyOf, cells) {
  keyed(body, items, keyOf, (item) => el("tr", {}, ...cells(item).map((_, index) => el(index ? "td" : "th", index ? {} : { scope: "row" }))),
    (row, item) => cells(item).forEach((text, index) => say(row.cells[index], text)));
}

function figure(name, value) {
  if (name === "error") return `${(value * 100).toFixed(2)} %`;
  if (name === "quality") return value.toFixed(3);
  return name === "output" ? count(Math.round(value)) : duration(value);
}
