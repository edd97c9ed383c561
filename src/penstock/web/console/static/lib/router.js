/**
 * Addresses of pages, all below the page's base: topics/orders/messages?from=newest. A page has an address that can be
 * shared, and the browser's own back and forward work.
 */

import { unsegmented } from "./api.js";
import { h } from "./dom.js";

/** @typedef {import("./dom.js").Child} Child */

/** Decides which page is shown for an address. @type {() => void} */
let onChange = () => {};

const base = new URL(document.baseURI);

/** @param {() => void} listener */
export function startRouter(listener) {
  onChange = listener;
  window.addEventListener("popstate", () => onChange());
  document.addEventListener("click", followLink);
}

/** The segments of the current address, decoded. @returns {string[]} */
export function segments() {
  const rest = location.pathname.startsWith(base.pathname) ? location.pathname.slice(base.pathname.length) : "";
  return rest.split("/").filter(Boolean).map(decoded);
}

/** @param {string} segment */
function decoded(segment) {
  try {
    return unsegmented(decodeURIComponent(segment));
  } catch {
    return segment;
  }
}

/** Shows another page. @param {string} to relative to the base */
export function navigate(to) {
  history.pushState(null, "", new URL(to, base));
  onChange();
}

/** Changes the query of the current address without showing the page again.
 * @param {Record<string, string | number | null | undefined>} changes */
export function setQuery(changes) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, String(value));
  }
  history.replaceState(null, "", url);
}

/** A link to a page. @param {string} to made with `path` @param {...Child} children */
export function link(to, ...children) {
  return h("a", { href: to }, ...children);
}

/** @param {MouseEvent} event */
function followLink(event) {
  const found = event.target instanceof Element ? event.target.closest("a[href]") : null;
  if (!(found instanceof HTMLAnchorElement) || found.target || found.hasAttribute("download")) return;
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const url = new URL(found.href);
  if (url.origin !== base.origin || !url.pathname.startsWith(base.pathname)) return;
  event.preventDefault();
  history.pushState(null, "", url);
  onChange();
}
