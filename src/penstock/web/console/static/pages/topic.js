/** One topic: its partitions, its configs with their documentation, and who consumes it. */

import { dataTable } from "../elements/data-table.js";
import { confirmDialog, formDialog } from "../elements/dialog.js";
import { badge, button, emptyState, pageHead, tabs, tile } from "../elements/parts.js";
import { toast } from "../elements/toast.js";
import { ApiError, get, patch, path, post, remove, segment } from "../lib/api.js";
import { h, show as fill } from "../lib/dom.js";
import { bytes, count, duration, plural } from "../lib/format.js";
import { live } from "../lib/live.js";
import { permissions } from "../lib/permissions.js";
import { link, navigate } from "../lib/router.js";

const REFRESH_MS = 5_000;

/** @typedef {import("../main.js").View} View */

/** The parts of a topic's pages; messages have a page of their own. @param {string} topic @param {string} current */
export function topicTabs(topic, current) {
  const base = path`topics/${topic}`;
  return tabs(
    "Parts of this topic",
    [
      { id: "partitions", title: "Partitions", href: base },
      { id: "messages", title: "Messages", href: `${base}/messages` },
      { id: "consumers", title: "Consumers", href: `${base}?part=consumers` },
      { id: "configs", title: "Configs", href: `${base}?part=configs` },
    ],
    current,
  );
}

/** @param {View} view */
export async function show(view) {
  const name = view.params.topic;
  const part = view.query.get("part") ?? "partitions";
  const body = h("div", { class: "stack" });
  const shown = part === "configs" ? showConfigs : part === "consumers" ? showConsumers : showPartitions;
  const may = await permissions(view.signal, "topic", name);
  await shown(view, name, body, may);
  const actions = [
    may("alter") ? button("Add partitions", () => addPartitions(view, name)) : null,
    may("delete") ? button("Delete", () => deleteTopic(name), { class: "danger" }) : null,
  ];
  view.root.append(pageHead(name, { trail: [link("topics", "Topics")], actions }), topicTabs(name, part), body);
}

/** @param {View} view @param {string} name @param {HTMLElement} body */
async function showPartitions(view, name, body) {
  const tiles = h("div", { class: "tiles" });
  const table = partitionTable();
  body.append(tiles, table);
  await live(view, REFRESH_MS, async () => {
    const [topic, sizes] = await Promise.all([get(path`topics/${name}`, { signal: view.signal }), get(path`topics/${name}/sizes`, { signal: view.signal })]);
    /** @type {Map<number, number>} */
    const largest = new Map();
    for (const row of sizes.replicas) largest.set(row.partition, Math.max(largest.get(row.partition) ?? 0, row.size_bytes));
    table.rows = topic.partitions.map((/** @type {any} */ row) => ({ ...row, size: largest.get(row.partition) ?? null }));
    fill(tiles, ...topicTiles(topic, sizes));
  });
}

/** @param {any} topic @param {any} sizes */
function topicTiles(topic, sizes) {
  const known = topic.partitions.filter((/** @type {any} */ row) => row.latest_offset !== null);
  const offsets = known.reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + row.latest_offset - row.earliest_offset, 0);
  const policy = topic.configs["cleanup.policy"]?.value;
  return [
    tile("Messages", count(offsets), policy?.includes("compact") ? "offsets; compaction leaves gaps" : "from the first to the last offset"),
    tile("Size", bytes(sizes.size_bytes), sizes.unanswered.length ? `nodes ${sizes.unanswered.join(", ")} do not answer` : "of all replicas"),
    tile("Partitions", count(topic.partitions.length), `${plural(topic.partitions[0]?.replicas.length ?? 0, "replica")} each`),
    tile("Old messages", policy || "are kept", "cleanup.policy"),
  ];
}

function partitionTable() {
  return dataTable({
    caption: "Partitions",
    noun: "partition",
    rowKey: (row) => String(row.partition),
    columns: [
      { title: "Partition", value: (row) => row.partition },
      { title: "Leader", value: (row) => row.leader, cell: (row) => (row.leader === null ? badge("none", "bad") : `node\u00a0${row.leader}`) },
      { title: "Replicas", value: (row) => row.replicas.join(", "), cell: (row) => replicasOf(row) },
      { title: "First offset", value: (row) => row.earliest_offset, cell: (row) => count(row.earliest_offset), numeric: true },
      { title: "Next offset", value: (row) => row.latest_offset, cell: (row) => count(row.latest_offset), numeric: true },
      { title: "Size", value: (row) => row.size, cell: (row) => bytes(row.size), numeric: true },
      { title: "Epoch", value: (row) => row.leader_epoch, numeric: true },
    ],
  });
}

/** @param {any} row */
function replicasOf(row) {
  const behind = row.replicas.filter((/** @type {number} */ node) => !row.in_sync.includes(node));
  return [`${row.replicas.join(", ")} `, behind.length ? badge(`${behind.join(", ")} behind`, "warn") : null];
}

// --- consumers

/** @param {View} view @param {string} name @param {HTMLElement} body */
async function showConsumers(view, name, body) {
  const table = consumerTable();
  body.append(table);
  await live(view, REFRESH_MS, async () => {
    const [groups, queues, subscriptions] = await Promise.all([
      get(path`topics/${name}/groups`, { signal: view.signal }),
      get("queues", { signal: view.signal }),
      get("subscriptions", { signal: view.signal }),
    ]);
    const subscribed = new Set(subscriptions.subscriptions.map((/** @type {any} */ one) => one.subscription)); // they have groups of their names
    table.rows = [
      ...groups.groups.filter((/** @type {any} */ one) => !subscribed.has(one.group)).map((/** @type {any} */ one) => ({ kind: "group", name: one.group, state: one.state, left: one.lag })),
      ...queues.queues.filter((/** @type {any} */ one) => one.topics.includes(name)).map((/** @type {any} */ one) => ({ kind: "queue", name: one.queue, state: plural(one.consumers, "consumer"), left: one.undone })),
      ...subscriptions.subscriptions.filter((/** @type {any} */ one) => one.topics.includes(name)).map((/** @type {any} */ one) => ({ kind: "subscription", name: one.subscription, state: one.attached ? "attached" : "detached", left: one.lag })),
    ];
  });
}

function consumerTable() {
  return dataTable({
    caption: "Consumers of this topic",
    noun: "consumer",
    rowKey: (row) => `${row.kind} ${row.name}`,
    empty: () => emptyState("Nothing reads this topic", "Groups appear here when they have committed an offset, queues and subscriptions when they were created."),
    columns: [
      { title: "Name", value: (row) => row.name, cell: (row) => link(`${row.kind}s/${segment(row.name)}`, row.name), class: "name" },
      { title: "Kind", value: (row) => row.kind },
      { title: "State", value: (row) => row.state },
      { title: "Left to read", value: (row) => row.left, cell: (row) => count(row.left), numeric: true },
    ],
  });
}

// --- configs

/** @param {View} view @param {string} name @param {HTMLElement} body @param {import("../lib/permissions.js").May} may */
async function showConfigs(view, name, body, may) {
  const [topic, { configs }] = await Promise.all([get(path`topics/${name}`, { signal: view.signal }), get("topic-configs", { signal: view.signal })]);
  const own = configs.filter((/** @type {any} */ one) => !one.refused);
  if (!Object.keys(topic.configs).length) {
    body.append(emptyState("You may not see the configs", "They need the permission DESCRIBE_CONFIGS on this topic."));
    return;
  }
  const table = dataTable({
    caption: "Configs",
    noun: "config",
    rowKey: (row) => row.name,
    columns: [
      { title: "Name", value: (row) => row.name, class: "key" },
      { title: "Value", value: (row) => row.value, cell: (row) => [h("code", {}, row.value === "" ? "(empty)" : row.value), " ", inWords(row), row.inherited ? null : badge("set here", "plain")] },
      { title: "What it does", value: (row) => row.doc, class: "prose" },
      { title: "", value: () => "", unsorted: true, cell: (row) => may("alter_configs") && button("Change", () => changeConfig(view, name, row), { "aria-label": `Change ${row.name}` }) },
    ],
  });
  table.rows = own.map((/** @type {any} */ one) => ({ ...one, ...topic.configs[one.name] }));
  body.append(table);
}

/** A long time as people say it. @param {{name: string, value: string}} config */
function inWords({ name, value }) {
  return name.endsWith(".ms") && Number(value) >= 1000 && Number(value) < 1e14 ? h("span", { class: "note" }, `${duration(Number(value))} `) : null;
}

/** @param {View} view @param {string} name @param {any} config */
function changeConfig(view, name, config) {
  formDialog(`Change ${config.name}`, {
    intro: [h("p", {}, config.doc), h("p", { class: "note" }, `Expected: ${config.expected}. Default: ${config.default === "" ? "(empty)" : config.default}.`)],
    fields: [
      { name: "value", label: "Value", value: config.value ?? "", help: config.inherited ? "This value is the broker's." : "This value is the topic's own." },
      { name: "unset", label: "Take the broker's value instead", type: "checkbox", value: false },
    ],
    submitLabel: "Save",
    submit: async ({ value, unset }) => {
      try {
        await patch(path`topics/${name}/configs`, unset ? { unset: [config.name] } : { set: { [config.name]: value } });
      } catch (trouble) {
        // The API names the field of its body, the form has one field for the value.
        if (trouble instanceof ApiError && trouble.status === 400) throw new ApiError(400, trouble.code, trouble.message, "value");
        throw trouble;
      }
      toast(`${config.name} was changed.`);
      view.reload();
    },
  });
}

// --- changes

/** @param {View} view @param {string} name */
async function addPartitions(view, name) {
  const { partitions } = await get(path`topics/${name}`);
  formDialog("Add partitions", {
    intro: [h("p", {}, "Keys may go to other partitions from then on, so the order of messages of one key is not kept across the change. Partitions cannot be removed.")],
    fields: [{ name: "count", label: "Partitions in all", type: "number", required: true, min: partitions.length + 1, value: partitions.length + 1 }],
    submitLabel: "Add",
    submit: async (values) => {
      await post(path`topics/${name}/partitions`, { count: values.count });
      toast(`${name} has ${plural(values.count, "partition")} now.`);
      view.reload();
    },
  });
}

/** @param {string} name */
function deleteTopic(name) {
  confirmDialog(`Delete ${name}?`, {
    text: "All of its messages are deleted, on all nodes. This cannot be undone.",
    action: "Delete the topic",
    typed: name,
    run: async () => {
      await remove(path`topics/${name}`);
      toast(`Topic ${name} was deleted.`);
      navigate("topics");
    },
  });
}
