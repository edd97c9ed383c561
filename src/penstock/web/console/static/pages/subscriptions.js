/** All subscriptions: who is attached, and how far they are. */

import { dataTable } from "../elements/data-table.js";
import { badge, emptyState, pageHead } from "../elements/parts.js";
import { get, path } from "../lib/api.js";
import { h, show as fill } from "../lib/dom.js";
import { ago, count, duration } from "../lib/format.js";
import { live } from "../lib/live.js";
import { link } from "../lib/router.js";

const REFRESH_MS = 5_000;

/**
 * @typedef {{subscription: string, topics: string[], coordinator: number, attached: boolean, since_ms: number, ttl_ms: number,
 *   ttl_left_ms: number | null, lag: number | null}} Subscription
 */

/** @param {import("../main.js").View} view */
export async function show(view) {
  const table = dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<Subscription>>} */ ({
      caption: "Subscriptions",
      noun: "subscription",
      rowKey: (one) => one.subscription,
      empty: () => emptyState("There are no subscriptions, or none that you may see", "A program subscribes over the WebSocket /v1/push, and messages are pushed to it as they come. The subscription remembers how far it is."),
      columns: [
        { title: "Name", value: (one) => one.subscription, cell: (one) => link(path`subscriptions/${one.subscription}`, one.subscription), class: "name" },
        { title: "Subscriber", value: (one) => (one.attached ? "attached" : "none"), cell: (one) => attachment(one) },
        { title: "Since", value: (one) => -one.since_ms, cell: (one) => ago(one.since_ms) },
        { title: "Topics", value: (one) => one.topics.join(", "), cell: (one) => topicLinks(one.topics), class: "name" },
        { title: "Lag", value: (one) => one.lag, cell: (one) => count(one.lag), numeric: true },
        { title: "Node", value: (one) => one.coordinator, numeric: true },
        { title: "Forgotten", value: (one) => one.ttl_left_ms, cell: (one) => (one.ttl_left_ms === null ? "not while attached" : `in ${duration(one.ttl_left_ms)}`) },
      ],
    }),
  );
  const silent = h("div");
  await live(view, REFRESH_MS, async () => {
    const found = await get("subscriptions", { signal: view.signal });
    table.rows = found.subscriptions;
    fill(silent, unansweredNote(found.unanswered, "subscriptions"));
  });
  view.root.append(pageHead("Subscriptions"), silent, table);
}

/** @param {{attached: boolean}} one */
export function attachment(one) {
  return one.attached ? badge("attached", "good") : badge("none", "warn");
}

/** @param {string[]} topics */
export function topicLinks(topics) {
  return topics.flatMap((topic, at) => (at ? [", ", link(path`topics/${topic}`, topic)] : [link(path`topics/${topic}`, topic)]));
}

/** Says that the list is not complete. @param {number[]} nodes @param {string} what */
export function unansweredNote(nodes, what) {
  return nodes.length ? h("p", { class: "note" }, badge("not complete", "warn"), ` Node ${nodes.join(", ")} does not answer, so ${what} that it coordinates are missing here.`) : null;
}
