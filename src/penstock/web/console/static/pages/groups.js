/** All consumer groups. */

import { dataTable } from "../elements/data-table.js";
import { badge, emptyState, pageHead } from "../elements/parts.js";
import { get, path } from "../lib/api.js";
import { h, show as fill } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { live } from "../lib/live.js";
import { link } from "../lib/router.js";

const REFRESH_MS = 5_000;

/** @param {import("../main.js").View} view */
export async function show(view) {
  const silent = h("div");
  const table = dataTable({
    caption: "Groups",
    noun: "group",
    rowKey: (group) => group.group,
    empty: () => emptyState("There are no consumer groups yet, or none that you may see", "A group appears when a consumer with its group.id subscribes, or commits an offset."),
    columns: [
      { title: "Name", value: (group) => group.group, cell: (group) => link(path`groups/${group.group}`, group.group), class: "name" },
      { title: "State", value: (group) => group.state, cell: (group) => groupState(group.state) },
      { title: "Protocol", value: (group) => group.type },
      { title: "Lag", value: (group) => group.lag, cell: (group) => count(group.lag), numeric: true },
      { title: "Coordinator", value: (group) => group.coordinator, cell: (group) => `node\u00a0${group.coordinator}` },
    ],
  });
  await live(view, REFRESH_MS, async () => {
    const [{ groups, unanswered }, { subscriptions }] = await Promise.all([get("groups", { signal: view.signal }), get("subscriptions", { signal: view.signal })]);
    const others = new Set(subscriptions.map((/** @type {any} */ one) => one.subscription)); // they have groups of their names
    table.rows = groups.filter((/** @type {any} */ group) => group.type.toLowerCase() !== "share" && !others.has(group.group));
    fill(silent, unanswered.length ? h("p", { class: "note" }, `Groups of nodes ${unanswered.join(", ")} are missing: these nodes do not answer.`) : null);
  });
  view.root.append(pageHead("Groups", { note: "Consumers that share the partitions of topics. Queues and subscriptions have pages of their own. Lag is some seconds old; in a cluster it counts partitions of which the coordinator has a replica." }), silent, table);
}

/** @param {string} state */
export function groupState(state) {
  const kinds = /** @type {Record<string, "good" | "warn" | "plain" | "bad">} */ ({ stable: "good", empty: "plain", dead: "bad" });
  return badge(state, kinds[state.toLowerCase()] ?? "warn");
}
