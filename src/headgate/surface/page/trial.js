// Try a request: its answer as it comes, and then its own waterfall.
//
// The key is a user's, not the admin's. It stays in this field: no storage has it, and it is gone with the tab.

import { byId, el, say, set, show } from "./dom.js";
import { ask, messageOf } from "./feed.js";
import { duration } from "./format.js";
import { view } from "./slow.js";

const TRIES = 8; // a record is there a moment after the last byte
let abort = null;
let models = new Set();

export function setUp() {
  byId("try-open").addEventListener("click", openTrial);
  byId("try-here").addEventListener("click", openTrial);
  byId("trial-close").addEventListener("click", () => byId("trial").close());
  byId("trial").addEventListener("close", () => abort?.abort());
  byId("trial").addEventListener("click", (event) => {
    if (event.target === byId("trial")) byId("trial").close();
  });
  byId("trial-stop").addEventListener("click", () => abort?.abort());
  byId("trial-key").addEventListener("change", listModels);
  byId("trial-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
}

export function takeChoices({ lanes, replicas, keyed }) {
  const select = byId("trial-lane");
  const names = lanes.map((lane) => lane.name);
  if ([...select.options].slice(1).map((o) => o.value).join() !== names.join()) {
    const chosen = select.value;
    select.replaceChildren(select.options[0], ...names.map((name) => el("option", { value: name }, name)));
    select.value = names.includes(chosen) ? chosen : "";
  }
  set(byId("trial-key"), "required", keyed ? "" : null);
  say(byId("trial-key-label"), keyed ? "API key" : "API key (none is needed)");
  offer(replicas.flatMap((r) => (r.model ? r.model.split(", ") : [])));
}

function offer(names) {
  const more = names.filter((name) => !models.has(name));
  if (!more.length) return;
  models = new Set([...models, ...more]);
  byId("trial-models").replaceChildren(...[...models].sort().map((name) => el("option", { value: name })));
  if (!byId("trial-model").value) byId("trial-model").value = more[0];
}

export function openTrial() {
  if (byId("trial").open) return;
  byId("trial").showModal();
  byId("trial-prompt").focus();
  listModels();
}

const credentials = () => {
  const key = byId("trial-key").value.trim();
  return key ? { authorization: `Bearer ${key}` } : {};
};

async function listModels() {
  if (byId("trial-key").required && !byId("trial-key").value) return;
  try {
    const answer = await fetch("v1/models", { headers: credentials(), cache: "no-store" });
    if (answer.ok) offer((await answer.json()).data.map((model) => model.id));
  } catch {
    // A name can be typed.
  }
}

async function send() {
  const id = `try-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
  const lane = byId("trial-lane").value;
  const headers = { "content-type": "application/json", "x-request-id": id, ...credentials() };
  if (lane) headers["x-headgate-lane"] = lane;
  const body = {
    model: byId("trial-model").value, stream: true, max_tokens: Number(byId("trial-tokens").value),
    messages: [{ role: "user", content: byId("trial-prompt").value }],
  };
  abort = new AbortController();
  busy(true);
  say(byId("trial-flaw"), "");
  byId("trial-why").replaceChildren();
  say(byId("trial-answer"), "");
  show(byId("trial-answer"), true);
  const began = performance.now();
  const took = () => duration((performance.now() - began) / 1000);
  say(byId("trial-state"), "Waiting for the first token …");
  let given = id;
  try {
    const answer = await fetch("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal: abort.signal });
    given = answer.headers.get("x-request-id") ?? id;
    if (!answer.ok) throw new Error(await messageOf(answer));
    await read(answer.body, () => say(byId("trial-state"), `First token after ${took()} …`));
    say(byId("trial-state"), `Whole answer after ${took()}, as this browser saw it.`);
  } catch (error) {
    say(byId("trial-state"), "");
    if (!abort.signal.aborted) say(byId("trial-flaw"), `It got no whole answer: ${error.message.replace(/\.$/, "")}.`);
    else say(byId("trial-state"), `Stopped after ${took()}.`);
  }
  show(byId("trial-answer"), byId("trial-answer").textContent !== "");
  busy(false);
  if (byId("trial").open) await explain(given, lane);
}

async function read(stream, onFirst) {
  const decoder = new TextDecoder();
  const out = byId("trial-answer");
  let text = "";
  let first = true;
  for await (const chunk of chunks(stream)) {
    text += decoder.decode(chunk, { stream: true });
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const data = text.slice(0, end).replace(/^data: ?/gm, "");
      text = text.slice(end + 2);
      if (data === "[DONE]" || data.startsWith(":")) continue;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices?.[0]?.delta ?? {};
      const said = delta.content ?? delta.reasoning_content ?? "";
      if (said && first) {
        onFirst();
        first = false;
      }
      out.append(out.textContent ? said : said.trimStart());
      out.scrollTop = out.scrollHeight;
    }
  }
}

async function* chunks(stream) {
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

function busy(is) {
  set(byId("trial-send"), "disabled", is ? "" : null);
  show(byId("trial-stop"), is);
}

async function explain(id, lane) {
  const mine = abort; // another try begun meanwhile has its own
  for (let tries = 0; tries < TRIES; tries++) {
    await new Promise((done) => setTimeout(done, 150));
    if (mine !== abort) return;
    try {
      const told = await ask(`requests/${encodeURIComponent(id)}`);
      if (told.running) continue;
      if (mine !== abort) return;
      const parts = view(told);
      if (lane && told.record.lane !== lane) {
        parts.unshift(el("p", { class: "muted" }, `It went to lane ${told.record.lane}: only trusted keys choose their lane.`));
      }
      byId("trial-why").replaceChildren(...parts);
      return;
    } catch {
      // Not there yet.
    }
  }
}
