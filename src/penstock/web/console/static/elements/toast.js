/** Short messages about what was done, in a corner; a screen reader reads them. */

import { h } from "../lib/dom.js";
import { explain } from "./parts.js";

const SHOWN_MS = 6000;

/** Where toasts are shown; the shell adds it to the page once. */
export const toasts = h("div", { class: "toasts", role: "status", "aria-live": "polite" });

/** While a modal dialog is open, the rest of the page can be neither seen well nor clicked: toasts are then in the dialog. */
export function placeToasts() {
  const place = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.querySelector(".shell");
  if (toasts.parentElement !== place) place?.append(toasts);
}

/** @param {string} message @param {"good" | "bad"} [kind] */
export function toast(message, kind = "good") {
  const shown = h("div", { class: `toast ${kind}` }, h("span", {}, message));
  const close = h("button", { type: "button", class: "quiet", "aria-label": "Close this message", onclick: () => shown.remove() }, "×");
  shown.append(close);
  placeToasts();
  toasts.append(shown);
  if (kind === "good") setTimeout(() => shown.remove(), SHOWN_MS);
}

/** @param {unknown} trouble */
export function toastError(trouble) {
  const { title, message } = explain(trouble);
  toast(`${title}: ${message}`, "bad");
}
