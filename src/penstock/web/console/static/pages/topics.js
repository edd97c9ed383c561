/** All topics; creating one. */

import { dataTable } from "../elements/data-table.js";
import { formDialog } from "../elements/dialog.js";
import { button, emptyState, pageHead } from "../elements/parts.js";
import { toast } from "../elements/toast.js";
import { get, path, post } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { bytes, count, rate } from "../lib/format.js";
import { live } from "../lib/live.js";
import { permissions, somePermissions } from "../lib/permissions.js";
import { link, navigate } from "../lib/router.js";

const REFRESH_MS = 5_000;

/** @typedef {{name: string, partitions: number, replication_factor: number, internal: boolean, size_bytes: number | null, message_rate: number | null}} TopicRow */

/** @param {import("../main.js").View} view */
export async function show(view) {
  let withInternal = view.query.get("internal") === "true";
  const [ofTopics, ofCluster] = await Promise.all([somePermissions(view.signal, "topic"), permissions(view.signal)]);
  const mayCreate = ofTopics("create") || ofCluster("create");
  const table = topicTable(mayCreate);
  const internal = h("input", { type: "checkbox", id: "internal" });
  internal.checked = withInternal;
  const load = async () => {
    table.rows = (await get("topics", { query: { internal: withInternal, figures: true }, signal: view.signal })).topics;
  };
  internal.addEventListener("change", () => {
    withInternal = internal.checked;
    view.setQuery({ internal: withInternal ? "true" : null });
    void load();
  });
  await live(view, REFRESH_MS, load);
  view.root.append(
    pageHead("Topics", { actions: mayCreate ? [createButton()] : [] }),
    h("label", { class: "option", for: "internal" }, internal, " Show internal topics: the broker's own, with its status log"),
    table,
  );
}

function createButton() {
  return button("Create a topic", createTopic, { class: "primary" });
}

/** @param {boolean} mayCreate */
function topicTable(mayCreate) {
  return dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<TopicRow>>} */ ({
      caption: "Topics",
      noun: "topic",
      rowKey: (topic) => topic.name,
      empty: () =>
        mayCreate
          ? emptyState("There are no topics yet", "Create one, or let a Kafka client write to a name: topics are made on first use unless the broker says otherwise.", createButton())
          : emptyState("There are no topics yet", "Or none that you may see. You may not create one: no access rule allows it."),
      columns: [
        { title: "Name", value: (topic) => topic.name, cell: (topic) => link(path`topics/${topic.name}`, topic.name), class: "name" },
        { title: "Partitions", value: (topic) => topic.partitions, cell: (topic) => count(topic.partitions), numeric: true },
        { title: "Replicas", value: (topic) => topic.replication_factor, cell: (topic) => count(topic.replication_factor), numeric: true },
        { title: "Size", value: (topic) => topic.size_bytes, cell: (topic) => bytes(topic.size_bytes), numeric: true },
        { title: "Messages per second", value: (topic) => topic.message_rate, cell: (topic) => rate(topic.message_rate), numeric: true },
        { title: "", value: () => "", unsorted: true, cell: (topic) => link(path`topics/${topic.name}/messages`, "Messages") },
      ],
    }),
  );
}

export function createTopic() {
  formDialog("Create a topic", {
    fields: [
      { name: "name", label: "Name", required: true, help: "Letters, digits, dots, underscores and hyphens." },
      { name: "partitions", label: "Partitions", type: "number", min: 1, help: "How many consumers of a group can share the work. Left out: the broker's default." },
      { name: "replication_factor", label: "Replicas", type: "number", min: 1, help: "How many nodes keep a copy. Left out: the broker's default." },
      { name: "cleanup", label: "What happens to old messages", type: "select", options: [["", "The broker's default"], ["delete", "Deleted after some time"], ["compact", "The last of each key stays"], ["acked", "Deleted when all consumers have acked them"]] },
    ],
    submitLabel: "Create",
    submit: async ({ name, partitions, replication_factor, cleanup }) => {
      const configs = cleanup ? { "cleanup.policy": cleanup } : {};
      await post("topics", { name, partitions, replication_factor, configs });
      toast(`Topic ${name} was created.`);
      navigate(path`topics/${name}`);
    },
  });
}
