// Batches that are not over: how far each is, and what it waits for.

import { byId, el, keyed, set, show } from "./dom.js";
import { count } from "./format.js";

export function setUp() {
  byId("queues").after(el(
    "section", { id: "batches", class: "panel", "aria-labelledby": "batches-title", hidden: "" },
    el("h2", { id: "batches-title" }, "Batches"),
    el("p", { id: "batches-trouble", role: "status" }),
    el("ul", { id: "batch-list", class: "finding-list" }),
  ));
}

export function takeBatches(batches) {
  const running = batches?.running ?? [];
  show(byId("batches"), running.length > 0 || Boolean(batches?.trouble));
  set(byId("batches-trouble"), batches?.trouble ?? "");
  keyed(byId("batch-list"), running, (batch) => batch.id, make, update);
}

function make({ id }) {
  return el("li", {}, el("h3", {}, id), el("p", { class: "far" }), el("p", { class: "waits muted" }));
}

function update(item, batch) {
  const { total, completed, failed } = batch.request_counts;
  const far = `${batch.status.replace("_", " ")}: ${count(completed)} answered, ${count(failed)} failed of ${count(total)}`;
  set(item.querySelector(".far"), `${far}, ${count(batch.lines_under_way)} under way, tenant ${batch.tenant}`);
  set(item.querySelector(".waits"), batch.waits_for ? `Waits: ${batch.waits_for}` : "");
}
