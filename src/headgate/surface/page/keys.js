// Keys for those who watch all day. They do nothing while text is being typed, or in a dialog.

import { byId } from "./dom.js";

const typing = (node) => node?.matches?.("input:not([type=radio]), textarea, select, [contenteditable]");

export function setUp(actions) {
  byId("keys-open").addEventListener("click", () => byId("keys").showModal());
  byId("keys-close").addEventListener("click", () => byId("keys").close());
  byId("keys").addEventListener("click", (event) => {
    if (event.target === byId("keys")) byId("keys").close();
  });
  const all = { ...actions, "?": () => byId("keys").showModal() };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (typing(event.target) || document.querySelector("dialog[open]")) return;
    const act = all[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

export function choose(name, value) {
  const input = document.querySelector(`input[name="${name}"][value="${value}"]`);
  input.checked = true;
  input.dispatchEvent(new Event("change"));
}
