// Tries a call: from the fields of its form, with the key at the top of the page, which stays in the page's memory.

const MOST_SHOWN = 200_000;

for (const form of document.querySelectorAll("form")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
}

function asked(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  const headers = {};
  for (const input of form.querySelectorAll("input[data-in]")) {
    if (input.dataset.in === "path") path = path.replace(`{${input.name}}`, encodeURIComponent(input.value));
    else if (input.value && input.dataset.in === "query") query.set(input.name, input.value);
    else if (input.value) headers[input.name] = input.value;
  }
  const body = form.querySelector("textarea")?.value;
  if (form.dataset.method !== "GET") headers["content-type"] = "application/json";
  const key = document.getElementById("key").value.trim();
  if (key) headers.authorization = `Bearer ${key}`;
  return [`.${path}${query.size ? `?${query}` : ""}`, { method: form.dataset.method, headers, body, cache: "no-store" }];
}

async function send(form) {
  const status = form.querySelector("[role=status]");
  const out = form.parentElement.querySelector(".said");
  const button = form.querySelector("button");
  const began = performance.now();
  const took = () => `${Math.round(performance.now() - began)} ms`;
  const abort = new AbortController();
  button.disabled = true;
  out.hidden = false;
  out.textContent = "";
  status.textContent = "Waiting …";
  try {
    const [address, options] = asked(form);
    const answer = await fetch(address, { ...options, signal: abort.signal });
    const said = `${answer.status} ${answer.statusText}`.trim();
    status.textContent = `${said}, head after ${took()} …`;
    await show(answer, out);
    status.textContent = `${said}, whole after ${took()}`;
  } catch (error) {
    status.textContent = `No answer: ${error.message}`;
  } finally {
    abort.abort();
    button.disabled = false;
    if (!out.textContent) out.hidden = true;
  }
}

// As it comes, so that a stream is seen as one; JSON is then set out in lines.
async function show(answer, out) {
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const more = decoder.decode(value, { stream: true });
    text += more;
    if (out.textContent.length < MOST_SHOWN) out.append(more);
    else break;
  }
  if (!answer.headers.get("content-type")?.startsWith("application/json") || text.length >= MOST_SHOWN) return;
  try {
    out.textContent = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // It stays as it came.
  }
}
