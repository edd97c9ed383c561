/** One queue: its messages by state, who holds what, and why it does not move; its messages, scheduled ones, dead letters. */

import { dataTable } from "../elements/data-table.js";
import { confirmDialog } from "../elements/dialog.js";
import { messageLink } from "../elements/message.js";
import { badge, button, emptyState, facts, pageHead, section, shortId, tabs, tile } from "../elements/parts.js";
import { toast } from "../elements/toast.js";
import { get, path, post, remove } from "../lib/api.js";
import { h, show as fill, svg } from "../lib/dom.js";
import { ago, count, duration, place, plural, rate, time } from "../lib/format.js";
import { live } from "../lib/live.js";
import { readable } from "../lib/payload.js";
import { permissions } from "../lib/permissions.js";
import { link, navigate } from "../lib/router.js";
import { showDeadLetters } from "./queue_dead_letters.js";

/** @typedef {import("../main.js").View} View */

const REFRESH_MS = 3_000;
const PEEKED = 100;
const SCHEDULED = 200;

/** The API's words that the page has others for. @type {Record<string, string>} */
const STATES = { available: "ready", deferred: "delayed" };

const PARTS = [
  ["state", "State"],
  ["messages", "Messages"],
  ["scheduled", "Scheduled"],
  ["dead", "Dead letters"],
];

/** @param {View} view */
export async function show(view) {
  const name = view.params.queue;
  const part = view.query.get("part") ?? "state";
  const body = h("div", { class: "stack" });
  const shown = { messages: showMessages, scheduled: showScheduled, dead: showDeadLetters }[part] ?? showState;
  const may = await permissions(view.signal, "group", name);
  await shown(view, name, body);
  const base = path`queues/${name}`;
  view.root.append(
    pageHead(name, { trail: [link("queues", "Queues")], actions: [may("read") ? button("Purge", () => purge(view, name), { class: "danger" }) : null, may("delete") ? button("Delete", () => deleteQueue(name), { class: "danger" }) : null] }),
    tabs("Parts of this queue", PARTS.map(([id, title]) => ({ id, title, href: id === "state" ? base : `${base}?part=${id}` })), part),
    body,
  );
}

// --- its state

/** @param {View} view @param {string} name @param {HTMLElement} body */
async function showState(view, name, body) {
  const tiles = h("div", { class: "tiles" });
  const why = h("div");
  const settings = h("div");
  const consumers = consumerTable();
  const partitions = partitionTable();
  body.append(why, tiles, section("Consumers", consumers), section("Partitions", partitions), section("Settings", settings));
  await live(view, REFRESH_MS, async () => {
    const [queue, diagnosis] = await Promise.all([get(path`queues/${name}`, { signal: view.signal }), get(path`queues/${name}/diagnosis`, { signal: view.signal })]);
    fill(why, whyOf(diagnosis));
    fill(tiles, ...tilesOf(queue));
    fill(settings, settingsOf(queue.settings));
    consumers.rows = queue.consumers;
    partitions.rows = queue.partitions;
  });
}

/** @param {{summary: string, reasons: string[], stuck: boolean, moving: boolean}} diagnosis */
function whyOf({ summary, reasons, stuck, moving }) {
  const state = stuck ? badge("stuck", "warn") : moving ? badge("moving", "good") : badge("idle", "plain");
  return h("div", { class: stuck ? "why stuck" : "why" }, h("p", {}, state, ` ${summary}`), reasons.length ? h("ul", {}, ...reasons.map((reason) => h("li", {}, reason))) : null);
}

/** @param {any} queue */
function tilesOf(queue) {
  const sum = (/** @type {string} */ field) => queue.partitions.reduce((/** @type {number} */ all, /** @type {any} */ one) => all + (one[field] ?? 0), 0);
  return [
    tile("Ready", count(sum("available"))),
    tile("Leased", count(sum("leased")), "held by consumers"),
    tile("Delayed", count(sum("deferred")), "not due yet"),
    tile("Waiting", count(sum("waiting")), "for their key"),
    tile("Dead letters", queue.dead_letters ? link(`${path`queues/${queue.queue}`}?part=dead`, count(queue.dead_letters)) : count(queue.dead_letters), sum("dying") ? `not sent back; ${count(sum("dying"))} on the way` : "not sent back"),
    tile("Done", `${rate(sum("rate"))}/s`, "over the last minute"),
  ];
}

function consumerTable() {
  return dataTable({
    caption: "Consumers",
    noun: "consumer",
    filterable: false,
    rowKey: (one) => one.id,
    empty: () => emptyState("This queue has no consumers", "Start a worker: with the command penstock worker, a share consumer of Kafka, or over HTTP."),
    columns: [
      { title: "Name", value: (one) => one.name || one.id, class: "name" },
      { title: "Address", value: (one) => one.address },
      { title: "Over", value: (one) => one.interface },
      { title: "Since", value: (one) => one.since_ms, cell: (one) => ago(one.since_ms) },
      { title: "Holds", value: (one) => one.leases, cell: (one) => count(one.leases), numeric: true },
      { title: "Done per second", value: (one) => one.rate, cell: (one) => rate(one.rate), numeric: true },
      { title: "Works on", value: (one) => one.partitions.join(", "), class: "short" },
    ],
  });
}

function partitionTable() {
  const number = (/** @type {string} */ title, /** @type {string} */ field) => ({ title, value: (/** @type {any} */ one) => one[field], cell: (/** @type {any} */ one) => count(one[field]), numeric: true });
  return dataTable({
    caption: "Partitions",
    noun: "partition",
    filterable: false,
    rowKey: (one) => `${one.topic} ${one.partition}`,
    columns: [
      { title: "Topic", value: (one) => one.topic, cell: (one) => link(path`topics/${one.topic}`, one.topic), class: "name" },
      { title: "Partition", value: (one) => one.partition, numeric: true },
      { title: "Leader", value: (one) => one.leader, cell: (one) => (one.leader === null ? badge("none", "bad") : `node\u00a0${one.leader}`) },
      number("Ready", "available"),
      number("Leased", "leased"),
      number("Delayed", "deferred"),
      number("Waiting", "waiting"),
      number("Done before", "start_offset"),
    ],
  });
}

/** @param {any} settings */
function settingsOf(settings) {
  return facts([
    ["Order", settings.order === "none" ? "none" : `by ${settings.order}`],
    ["One consumer at a time", settings.exclusive ? "yes" : "no"],
    ["Lease", duration(settings.lease_ms)],
    ["Tries", settings.delivery_limit === 0 ? "no limit" : count(settings.delivery_limit)],
    ["Dead letters", settings.dead_letters ? settings.dead_letter_topic ?? "in a topic beside each" : "are dropped"],
    ["Before another try", settings.retry_backoff_ms ? `${duration(settings.retry_backoff_ms)} to ${duration(settings.retry_backoff_max_ms)}` : "no delay"],
  ]);
}

// --- its messages

/** @param {View} view @param {string} name @param {HTMLElement} body */
async function showMessages(view, name, body) {
  /** The names of consumers by their ids. @type {Map<string, string>} */
  let names = new Map();
  let leaseMs = 0;
  const table = dataTable({
    caption: "Messages that are not done",
    noun: "message",
    rowKey: (one) => `${one.topic} ${one.partition} ${one.offset}`,
    empty: () => emptyState("All messages are done", "New ones appear here as they come."),
    columns: [
      { title: "Message", value: (one) => place(one), cell: (one) => link(messageLink(one.topic, one), place(one)) },
      { title: "State", value: (one) => STATES[one.state] ?? one.state, cell: (one) => badge(STATES[one.state] ?? one.state, one.state === "leased" ? "warn" : "plain") },
      { title: "Held by", value: (one) => one.consumer && (names.get(one.consumer) ?? one.consumer), cell: (one) => (one.consumer ? shortId(names.get(one.consumer) ?? one.consumer) : "–") },
      { title: "Since", value: (one) => one.until_ms, cell: (one) => (one.until_ms === null || one.state !== "leased" ? "–" : ago(one.until_ms - leaseMs)), class: "time" },
      { title: "Until", value: (one) => one.until_ms, cell: (one) => (one.until_ms === null ? "–" : `in ${duration(one.until_ms - Date.now())}`), class: "time" },
      { title: "Tries", value: (one) => one.deliveries, numeric: true },
      { title: "Key", value: (one) => (one.key === null ? null : readable(one.key, one.key_encoding)), class: "brief" },
      { title: "Value", value: (one) => one.value, cell: (one) => h("code", {}, readable(one.value, one.value_encoding)), class: "value" },
    ],
  });
  body.append(h("p", { class: "note" }, `The first ${PEEKED} messages that are not done. Looking at them does not receive them. A lease is since it was given, or renewed.`), table);
  await live(view, REFRESH_MS, async () => {
    const [peeked, queue] = await Promise.all([get(path`queues/${name}/peek`, { query: { max_records: PEEKED, encoding: "text" }, signal: view.signal }), get(path`queues/${name}`, { signal: view.signal })]);
    names = new Map(queue.consumers.map((/** @type {any} */ one) => [one.id, one.name || one.id]));
    leaseMs = queue.settings.lease_ms;
    table.rows = peeked.messages;
  });
}

/** @param {View} view @param {string} name @param {HTMLElement} body */
async function showScheduled(view, name, body) {
  const summary = h("p", { class: "note" });
  const line = h("div");
  const table = dataTable({
    caption: "Scheduled messages",
    noun: "message",
    rowKey: (one) => `${one.topic} ${one.partition} ${one.offset}`,
    empty: () => emptyState("Nothing is scheduled", "Messages with a delay, and those that wait for another try, appear here."),
    columns: [
      { title: "Due", value: (one) => one.due_ms, cell: (one) => time(one.due_ms), class: "time" },
      { title: "In", value: (one) => one.due_ms, cell: (one) => duration(one.due_ms - Date.now()), unsorted: true },
      { title: "Message", value: (one) => one.offset, cell: (one) => link(messageLink(one.topic, one), place(one)) },
    ],
  });
  body.append(summary, line, table);
  await live(view, REFRESH_MS, async () => {
    const found = await get(path`queues/${name}/scheduled`, { query: { max_records: SCHEDULED }, signal: view.signal });
    const all = found.partitions.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + (one.deferred ?? 0), 0);
    fill(summary, `${plural(all, "message")} ${all === 1 ? "is" : "are"} not due yet${all > found.messages.length ? `; the next ${found.messages.length} are shown` : ""}.`);
    fill(line, found.messages.length ? timeLine(found.messages) : null);
    table.rows = found.messages;
  });
}

/** How many are due when: bars from now to the last one. @param {{due_ms: number}[]} messages */
function timeLine(messages) {
  const now = Date.now();
  const last = Math.max(now + 1000, ...messages.map((one) => one.due_ms));
  const bars = Array.from({ length: 24 }, () => 0);
  for (const { due_ms } of messages) bars[Math.min(23, Math.max(0, Math.floor(((due_ms - now) / (last - now)) * 24)))] += 1;
  const most = Math.max(...bars);
  const drawn = bars.map((number, at) => svg("rect", { x: at * 10 + 1, width: 8, y: 40 - (38 * number) / most, height: (38 * number) / most }));
  const picture = svg("svg", { viewBox: "0 0 240 40", preserveAspectRatio: "none", class: "bars series-1", role: "img", "aria-label": `${plural(messages.length, "message")} due until ${time(last)}` }, ...drawn);
  return h("div", { class: "card time-line" }, picture, h("div", { class: "axis" }, h("span", {}, "now"), h("span", {}, time(last))));
}

// --- changes

/** @param {View} view @param {string} name */
function purge(view, name) {
  confirmDialog(`Purge ${name}?`, {
    text: "All of its messages count as done, also those that are leased. Other queues and groups of its topics keep them.",
    action: "Purge the queue",
    typed: name,
    run: async () => {
      const { partitions } = await post(path`queues/${name}/purge`, {});
      const purged = partitions.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + (one.purged ?? 0), 0);
      toast(`${plural(purged, "message")} of ${name} count as done.`);
      view.reload();
    },
  });
}

/** @param {string} name */
function deleteQueue(name) {
  confirmDialog(`Delete ${name}?`, {
    text: "Its progress is deleted; the messages of its topics stay. A queue with consumers cannot be deleted.",
    action: "Delete the queue",
    typed: name,
    run: async () => {
      await remove(path`queues/${name}`);
      toast(`Queue ${name} was deleted.`);
      navigate("queues");
    },
  });
}
