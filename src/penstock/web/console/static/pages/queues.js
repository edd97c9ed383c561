/** All queues; creating one. */

import { dataTable } from "../elements/data-table.js";
import { formDialog } from "../elements/dialog.js";
import { badge, button, emptyState, pageHead } from "../elements/parts.js";
import { toast } from "../elements/toast.js";
import { get, path, post } from "../lib/api.js";
import { count, rate } from "../lib/format.js";
import { live } from "../lib/live.js";
import { somePermissions } from "../lib/permissions.js";
import { link, navigate } from "../lib/router.js";

const REFRESH_MS = 5_000;
/** @type {Record<string, "good" | "warn" | "plain">} */
const STATES = { stuck: "warn", moving: "good" };

/** @param {import("../main.js").View} view */
export async function show(view) {
  const may = await somePermissions(view.signal, "group");
  const create = () => (may("alter_configs") ? [button("Create a queue", createQueue, { class: "primary" })] : []);
  const table = dataTable({
    caption: "Queues",
    noun: "queue",
    rowKey: (queue) => queue.queue,
    empty: () => emptyState("There are no queues yet, or none that you may see", "A queue hands each message of a topic to one worker, and tries again if that fails.", ...create()),
    columns: [
      { title: "Name", value: (queue) => queue.queue, cell: (queue) => link(path`queues/${queue.queue}`, queue.queue), class: "name" },
      { title: "State", value: stateOf, cell: (queue) => badge(stateOf(queue), STATES[stateOf(queue)]) },
      { title: "Topics", value: (queue) => queue.topics.join(", "), cell: (queue) => queue.topics.flatMap((/** @type {string} */ topic, /** @type {number} */ at) => [at ? ", " : null, link(path`topics/${topic}`, topic)]), class: "name" },
      { title: "Not done", value: (queue) => queue.undone, cell: (queue) => count(queue.undone), numeric: true },
      { title: "Ready", value: (queue) => queue.available, cell: (queue) => count(queue.available), numeric: true },
      { title: "Leased", value: (queue) => queue.leased, cell: (queue) => count(queue.leased), numeric: true },
      { title: "Delayed", value: (queue) => queue.deferred, cell: (queue) => count(queue.deferred), numeric: true },
      { title: "Dead", value: (queue) => queue.dead_letters, cell: (queue) => (queue.dead_letters ? link(`${path`queues/${queue.queue}`}?part=dead`, count(queue.dead_letters)) : count(queue.dead_letters)), numeric: true },
      { title: "Consumers", value: (queue) => queue.consumers, cell: (queue) => count(queue.consumers), numeric: true },
      { title: "Done/s", value: (queue) => queue.rate, cell: (queue) => rate(queue.rate), numeric: true },
    ],
  });
  await live(view, REFRESH_MS, async () => {
    table.rows = (await get("queues", { signal: view.signal })).queues;
  });
  view.root.append(pageHead("Queues", { actions: create(), note: "Dead letters are counted by dead-letter topic: queues that share one have the same number." }), table);
}

/** Stuck: messages are ready, and none was settled in the last minute. @param {any} queue */
export function stateOf({ available, rate }) {
  if (available === null) return "unknown";
  return rate ? "moving" : available ? "stuck" : "idle";
}

function createQueue() {
  formDialog("Create a queue", {
    wide: true,
    fields: [
      { name: "queue", label: "Name", required: true, help: "The group id of its consumers." },
      { name: "topic", label: "Topic", help: "Left out: the queue's name. It is created if it does not exist." },
      { name: "start", label: "Begin with", type: "select", options: [["earliest", "The messages that are there"], ["latest", "New messages only"]] },
      { name: "order", label: "Order", type: "select", options: [["", "None: as fast as possible"], ["key", "By key: one message of a key at a time"]] },
      { name: "lease_ms", label: "Lease, in seconds", type: "number", min: 1, help: "How long a worker may hold a message without a sign of life." },
      { name: "delivery_limit", label: "Tries", type: "number", min: 0, max: 255, help: "After so many the message becomes a dead letter." },
    ],
    submitLabel: "Create",
    submit: async ({ queue, topic, start, order, lease_ms, delivery_limit }) => {
      await post("queues", { queue, topic: topic || null, start, order: order || null, lease_ms: lease_ms === null ? null : lease_ms * 1000, delivery_limit });
      toast(`Queue ${queue} was created.`);
      navigate(path`queues/${queue}`);
    },
  });
}
