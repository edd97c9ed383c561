/** Small parts that all pages share: headings, badges, tiles, and what is shown when there is nothing or an error. */

import { ApiError } from "../lib/api.js";
import { h } from "../lib/dom.js";

/** @typedef {import("../lib/dom.js").Child} Child */

/**
 * The head of a page: where it is, its title, and its actions.
 *
 * @param {string} title
 * @param {{trail?: Child[], actions?: Child[], note?: Child}} [more]
 */
export function pageHead(title, { trail = [], actions = [], note } = {}) {
  return h(
    "header",
    { class: "page-head" },
    trail.length ? h("nav", { "aria-label": "You are here", class: "trail" }, ...trail.flatMap((part, at) => (at ? [" / ", part] : [part]))) : null,
    h("div", { class: "page-title" }, h("h1", { tabindex: -1 }, title), actions.length ? h("div", { class: "actions" }, ...actions) : null),
    note ? h("p", { class: "note" }, note) : null,
  );
}

/** A long id by its beginning. @param {string} id */
export function shortId(id) {
  return id.length > 24 ? h("span", { title: id }, `${id.slice(0, 16)}…`) : id;
}

/** A part of a page. @param {string} title @param {...(Child | Child[])} children */
export function section(title, ...children) {
  return h("section", { class: "card" }, h("h2", {}, title), ...children);
}

/** @param {string} text @param {"good" | "bad" | "warn" | "plain"} [kind] */
export function badge(text, kind = "plain") {
  return h("span", { class: `badge ${kind}` }, text);
}

/** @param {string} label @param {Child} value @param {Child} [note] */
export function tile(label, value, note) {
  return h("div", { class: "tile" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), note ? h("div", { class: "note" }, note) : null);
}

/** Names and values in two columns. @param {[string, Child][]} rows */
export function facts(rows) {
  return h("dl", { class: "facts" }, ...rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** @param {string} label @param {(event: MouseEvent) => void} onclick @param {Record<string, import("../lib/dom.js").Attribute>} [attributes] */
export function button(label, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, label);
}

/** Says that there is nothing, and what to do next. @param {string} title @param {Child} advice @param {...Child} actions */
export function emptyState(title, advice, ...actions) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", {}, advice), actions.length ? h("div", { class: "actions" }, ...actions) : null);
}

export function loadingState() {
  return h("p", { class: "loading", role: "status" }, "Loading…");
}

/** Says what happened. @param {unknown} trouble @param {() => void} [retry] @param {...Child} actions */
export function errorState(trouble, retry, ...actions) {
  const { title, message } = explain(trouble);
  return h(
    "div",
    { class: "error", role: "alert" },
    h("p", { class: "error-title" }, title),
    h("p", {}, message),
    retry || actions.length ? h("div", { class: "actions" }, retry ? button("Try again", retry) : null, ...actions) : null,
  );
}

/** The end of a refusal that names a route of the API: the page has links instead. */
const ROUTE = /[;:,]? ?((GET|POST) )?\/v1\/\S+ (lists|describes|makes|shows)[^;]*$/;

/** @param {unknown} trouble @returns {{title: string, message: string}} */
export function explain(trouble) {
  if (!(trouble instanceof ApiError)) return { title: "The console has a bug", message: String(trouble) };
  const titles = /** @type {Record<number, string>} */ ({
    0: "The node does not answer",
    401: "You are not logged in",
    403: "You may not do this",
    404: "It does not exist",
    429: "Too many requests",
    503: "Not now",
  });
  return { title: titles[trouble.status] ?? "The node has refused this", message: trouble.message.replace(ROUTE, "").replace(/^there /, "There ") };
}

/**
 * Parts of a page of which one is shown. The choice is in the address, so that it can be shared.
 *
 * @param {string} label
 * @param {{id: string, title: string, href: string}[]} tabs
 * @param {string} current
 */
export function tabs(label, tabs, current) {
  return h(
    "nav",
    { class: "tabs", "aria-label": label },
    ...tabs.map((tab) => h("a", { href: tab.href, "aria-current": tab.id === current ? "page" : null }, tab.title)),
  );
}
