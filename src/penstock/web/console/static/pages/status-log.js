/** The status log, live: what happens in the cluster, newest first. */

import { dataTable } from "../elements/data-table.js";
import { badge, button, emptyState, pageHead } from "../elements/parts.js";
import { ApiError, get, path } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { time } from "../lib/format.js";
import { live } from "../lib/live.js";
import { clusterTabs } from "./cluster.js";

/** Events that the page keeps; the topic has more. */
const KEPT = 1_000;
const FIRST = 300;
const WAIT_MS = 20_000;
const PAUSE_MS = 500;

/** @typedef {{place: string, time: number, node: number, kind: string, text: string}} Event */

/** @param {import("../main.js").View} view */
export async function show(view) {
  const { status_topic: topic } = await get("cluster/summary", { signal: view.signal });
  view.root.append(pageHead("Status log", { note: topic ? `From the topic ${topic}: any Kafka client can read it, too.` : null }), clusterTabs("log"));
  if (!topic) {
    view.root.append(emptyState("This broker writes no status log", 'Its setting status_topic is empty. Set it to penstock.status and start the broker again.'));
    return;
  }
  const table = eventTable();
  /** @type {Event[]} */
  let events = [];
  const tools = filterTools(view, () => (table.rows = events.filter(tools.wanted)));
  view.root.append(tools.element, table);
  const places = await starts(topic, view.signal);
  if (!places.length) void follow(view, async () => void ((await starts(topic, view.signal)).length && view.reload()));
  for (const { partition, from } of places) {
    let offset = from;
    let wait_ms = 0;
    void follow(view, async () => {
      const read = await get(path`topics/${topic}/partitions/${partition}/records`, { query: { offset, max_records: FIRST, wait_ms }, signal: view.signal });
      offset = read.next_offset;
      wait_ms = WAIT_MS; // the first request answers at once
      if (!read.records.length || tools.isPaused()) return;
      events = [...events, ...read.records.map((/** @type {any} */ one) => eventOf(partition, one))].slice(-KEPT);
      tools.know(events);
      table.rows = events.filter(tools.wanted);
    });
  }
}

/** @param {import("../main.js").View} view @param {() => Promise<void>} work */
async function follow(view, work) {
  try {
    await live(view, PAUSE_MS, work);
  } catch (trouble) {
    if (!(trouble instanceof ApiError)) throw trouble;
    view.stale(trouble);
  }
}

/** Where to begin on each partition. A topic that does not exist yet has no events. @param {string} topic @param {AbortSignal} signal */
async function starts(topic, signal) {
  try {
    const { partitions } = await get(path`topics/${topic}`, { signal });
    return partitions.map((/** @type {any} */ one) => ({ partition: one.partition, from: Math.max(one.earliest_offset ?? 0, (one.latest_offset ?? 0) - FIRST) }));
  } catch (trouble) {
    if (trouble instanceof ApiError && trouble.status === 404) return [];
    throw trouble;
  }
}

/** @param {number} partition @param {any} record @returns {Event} */
function eventOf(partition, record) {
  const value = record.value !== null && typeof record.value === "object" ? record.value : { kind: "unknown", text: String(record.value) };
  const { time: _, kind, node_id: node, client_id: client, ...others } = value;
  const facts = client === undefined ? others : { ...others, client_id: shortClient(String(client)) };
  const words = Object.entries(facts).map(([name, fact]) => `${name}=${typeof fact === "object" ? JSON.stringify(fact) : fact}`);
  return { place: `${partition}/${record.offset}`, time: record.timestamp_ms, node, kind: String(kind), text: words.join(" ") };
}

/** Browsers have long names. @param {string} client */
function shortClient(client) {
  return client.length > 40 ? `${client.slice(0, 40)}…` : client;
}

/** The kinds, the connections, and a pause. @param {import("../main.js").View} view @param {() => void} changed */
function filterTools(view, changed) {
  const kinds = h("select", { id: "kind" }, h("option", { value: "" }, "all"));
  const connections = h("input", { type: "checkbox", id: "connections" });
  connections.checked = view.query.get("connections") === "true";
  let isPaused = false;
  const pause = button("Pause", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(isPaused));
  });
  let wantedKind = view.query.get("kind") ?? "";
  kinds.addEventListener("change", () => ((wantedKind = kinds.value), view.setQuery({ kind: wantedKind || null }), changed()));
  connections.addEventListener("change", () => (view.setQuery({ connections: connections.checked ? "true" : null }), changed()));
  const known = new Set();
  return {
    element: h("div", { class: "toolbar" }, h("label", { for: "kind" }, "Kind"), kinds, h("label", { class: "option", for: "connections" }, connections, " Connections, too"), pause),
    isPaused: () => isPaused,
    wanted: (/** @type {Event} */ event) => (!wantedKind || familyOf(event.kind) === wantedKind) && (connections.checked || wantedKind || !familyOf(event.kind).startsWith("connection")),
    know: (/** @type {Event[]} */ events) => {
      for (const family of events.map((event) => familyOf(event.kind))) {
        if (known.has(family)) continue;
        known.add(family);
        kinds.append(h("option", { value: family }, family));
      }
      kinds.value = known.has(wantedKind) ? wantedKind : "";
    },
  };
}

/** group.rebalanced is of the family group. @param {string} kind */
function familyOf(kind) {
  return kind.split(".")[0];
}

function eventTable() {
  return dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<Event>>} */ ({
      caption: "Events",
      noun: "event",
      sortColumn: 0,
      descending: true,
      rowKey: (event) => event.place,
      empty: () => emptyState("No such event yet", "Events appear here by themselves: topics that are created, groups that rebalance, nodes that come and go."),
      columns: [
        { title: "Time", value: (event) => `${String(event.time).padStart(16, "0")} ${event.place}`, cell: (event) => h("span", { class: "nowrap" }, time(event.time)) },
        { title: "Node", value: (event) => event.node, numeric: true },
        { title: "Kind", value: (event) => event.kind, cell: (event) => badge(event.kind, kindOf(event.kind)) },
        { title: "What", value: (event) => event.text, class: "value mono" },
      ],
    }),
  );
}

/** @param {string} kind @returns {"bad" | "warn" | "plain"} */
function kindOf(kind) {
  if (kind === "error" || /damaged|dead_letter|refused|dropped|undone_deleted/.test(kind)) return "bad";
  return /expired|fenced|leaving|inactive|held_back|unmet|deleted/.test(kind) ? "warn" : "plain";
}
