// Reading the gateway: the live feed, and single questions to /admin.
//
// EventSource can't send a key, so the event stream is read by hand. Whatever happens to it, the feed comes back by
// itself; only a missing key needs a person.
//
//   connecting → live → gone → connecting …      gone: refused, broken off, or silent for too long
//   connecting → locked → (a key) → connecting   locked: the gateway asks for an admin key
//   live → paused → connecting                   paused: nobody has looked at the page for a while

const SILENCE_MS = 5_000;
const RETRY_MS = [500, 1_000, 2_000, 4_000];
const PAUSE_MS = 60_000;
const KEY = "headgate-admin-key";

function headers() {
  const key = sessionStorage.getItem(KEY);
  return key === null ? {} : { authorization: `Bearer ${key}` };
}

export async function messageOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `it answered ${answer.status}`;
  }
}

// The JSON at a path below /admin; throws an Error that can be shown.
export async function ask(path) {
  const answer = await fetch(`admin/${path}`, { headers: headers(), cache: "no-store" });
  if (!answer.ok) throw new Error(await messageOf(answer));
  return answer.json();
}

// The same for something to be done.
export async function post(path) {
  const answer = await fetch(`admin/${path}`, { method: "POST", headers: { ...headers(), "content-type": "application/json" }, body: "{}" });
  if (!answer.ok) throw new Error(await messageOf(answer));
  return answer.json();
}

export class Feed {
  #onEvent;
  #onState;
  #abort = null;
  #failures = 0;
  #timer = 0;
  #watchdog = 0;
  #hiding = 0;
  state = "connecting";

  constructor(onEvent, onState) {
    this.#onEvent = onEvent;
    this.#onState = onState;
    document.addEventListener("visibilitychange", () => this.#seen());
  }

  // Also how a waiting feed is hurried.
  async connect() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    const abort = (this.#abort = new AbortController());
    this.#heard();
    let why = "The gateway is gone: it closed the connection";
    try {
      const answer = await fetch("admin/live", { headers: headers(), cache: "no-store", signal: abort.signal });
      if (answer.status === 401 || answer.status === 403) {
        const rejected = sessionStorage.getItem(KEY) !== null;
        sessionStorage.removeItem(KEY);
        clearTimeout(this.#watchdog);
        this.#become("locked", { rejected, message: await messageOf(answer) });
        return;
      }
      if (answer.ok) await this.#read(answer.body);
      else why = `The gateway refuses: ${await messageOf(answer)}`;
    } catch (error) {
      if (abort !== this.#abort) return; // another connection took over
      why = `The gateway is gone: ${abort.signal.aborted ? "it fell silent" : "it can't be reached"}`;
      if (error.said) why = `The gateway is in trouble: ${error.said}`;
    }
    if (abort !== this.#abort) return;
    this.#lost(why);
  }

  unlock(key) {
    sessionStorage.setItem(KEY, key);
    this.connect();
  }

  async #read(body) {
    const decoder = new TextDecoder();
    const reader = body.getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.#heard();
      text += decoder.decode(value, { stream: true });
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const data = text.slice(0, end).replace(/^data: /gm, "");
        text = text.slice(end + 2);
        this.#take(JSON.parse(data));
      }
    }
  }

  #take(event) {
    if (event.error) throw Object.assign(new Error(), { said: event.error.message });
    this.#onEvent(event);
    this.#failures = 0;
    if (this.state !== "live") this.#become("live", {});
  }

  #heard() {
    clearTimeout(this.#watchdog);
    this.#watchdog = setTimeout(() => this.#abort.abort(), SILENCE_MS);
  }

  #lost(why) {
    clearTimeout(this.#watchdog);
    const wait = RETRY_MS[Math.min(this.#failures++, RETRY_MS.length - 1)];
    this.#timer = setTimeout(() => this.connect(), wait);
    this.#become("gone", { why, retryAt: Date.now() + wait });
  }

  // A page in a forgotten tab would make the gateway compute for nobody.
  #seen() {
    clearTimeout(this.#hiding);
    if (document.hidden) this.#hiding = setTimeout(() => this.#pause(), PAUSE_MS);
    else if (this.state === "paused") this.connect();
  }

  #pause() {
    if (this.state === "locked") return;
    const abort = this.#abort;
    this.#abort = null;
    clearTimeout(this.#timer);
    clearTimeout(this.#watchdog);
    this.#become("paused", {});
    abort?.abort();
  }

  #become(state, detail) {
    this.state = state;
    this.#onState(state, detail);
  }
}
