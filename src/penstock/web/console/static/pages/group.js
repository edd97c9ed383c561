/** One consumer group: its members and what each reads, its lag, now and over time; resetting its offsets. */

import { dataTable } from "../elements/data-table.js";
import { confirmDialog, openDialog } from "../elements/dialog.js";
import { fieldForm } from "../elements/form.js";
import { linePlot } from "../elements/line-plot.js";
import { button, emptyState, pageHead, section, tile } from "../elements/parts.js";
import { toast, toastError } from "../elements/toast.js";
import { ApiError, get, path, post, remove } from "../lib/api.js";
import { h, show as fill } from "../lib/dom.js";
import { count, plural } from "../lib/format.js";
import { live } from "../lib/live.js";
import { permissions } from "../lib/permissions.js";
import { link, navigate } from "../lib/router.js";
import { groupState } from "./groups.js";

/** @typedef {import("../main.js").View} View */

const REFRESH_MS = 5_000;

/** @param {View} view */
export async function show(view) {
  const name = view.params.group;
  const tiles = h("div", { class: "tiles" });
  const plot = linePlot("Lag");
  const offsets = offsetTable();
  const members = memberTable();
  const may = await permissions(view.signal, "group", name);
  await live(view, REFRESH_MS, async () => {
    const [group, lags] = await Promise.all([get(path`groups/${name}`, { signal: view.signal }), get(path`groups/${name}/samples`, { signal: view.signal })]);
    const owners = ownersOf(group);
    fill(tiles, ...tilesOf(group));
    plot.intervalMs = lags.interval_ms;
    plot.setData(lags.samples.map((/** @type {any} */ one) => one.time_ms), [{ name: "messages", values: lags.samples.map((/** @type {any} */ one) => one.lag) }]);
    offsets.rows = [...group.offsets, ...group.uncommitted].map((/** @type {any} */ row) => ({ ...row, owner: owners.get(`${row.topic} ${row.partition}`) ?? null }));
    members.rows = group.members;
  });
  view.root.append(
    pageHead(name, { trail: [link("groups", "Groups")], actions: [may("read") ? button("Reset offsets", () => void resetDialog(view, name).catch((trouble) => view.signal.aborted || toastError(trouble))) : null, may("delete") ? button("Delete", () => deleteGroup(name), { class: "danger" }) : null] }),
    tiles,
    plot,
    section("Offsets", offsets),
    section("Members", members),
  );
}

/** @param {any} group */
function tilesOf(group) {
  return [
    tile("State", groupState(group.state)),
    tile("Lag", count(group.lag), "messages that are not committed"),
    tile("Members", count(group.members.length)),
    tile("Partitions", count(group.offsets.length), `with committed offsets${group.uncommitted.length ? `; ${count(group.uncommitted.length)} without` : ""}`),
    tile("Protocol", group.protocol || "–", `node ${group.coordinator} coordinates`),
  ];
}

/** Which member reads which partition. @param {any} group @returns {Map<string, string>} */
function ownersOf(group) {
  const found = new Map();
  for (const member of group.members) {
    for (const { topic, partitions } of member.assignment ?? []) {
      for (const partition of partitions) found.set(`${topic} ${partition}`, member.client_id || member.member_id);
    }
  }
  return found;
}

function offsetTable() {
  return dataTable({
    caption: "Committed offsets",
    noun: "partition",
    rowKey: (row) => `${row.topic} ${row.partition}`,
    empty: () => emptyState("No offset is committed yet", "Its consumers have not committed one, or read with offsets of their own."),
    columns: [
      { title: "Topic", value: (row) => row.topic, cell: (row) => link(path`topics/${row.topic}`, row.topic), class: "name" },
      { title: "Partition", value: (row) => row.partition, numeric: true },
      { title: "Committed", value: (row) => row.committed_offset, cell: (row) => (row.committed_offset === undefined ? "nothing yet" : count(row.committed_offset)), numeric: true },
      { title: "End", value: (row) => row.latest_offset, cell: (row) => count(row.latest_offset), numeric: true },
      { title: "Lag", value: (row) => row.lag, cell: (row) => count(row.lag), numeric: true },
      { title: "Read by", value: (row) => row.owner },
    ],
  });
}

function memberTable() {
  return dataTable({
    caption: "Members",
    noun: "member",
    filterable: false,
    rowKey: (member) => member.member_id,
    empty: () => emptyState("The group has no members", "Its consumers are not connected. Its offsets stay, and can be reset now."),
    columns: [
      { title: "Client", value: (member) => member.client_id, class: "name" },
      { title: "Host", value: (member) => member.client_host },
      { title: "Reads", value: (member) => readBy(member), class: "value" },
      { title: "Member id", value: (member) => member.member_id, class: "short" },
    ],
  });
}

/** @param {any} member */
function readBy(member) {
  if (member.assignment === null) return "unknown: not in the format of Kafka's consumers";
  return member.assignment.map((/** @type {any} */ one) => `${one.topic}: ${one.partitions.join(", ")}`).join("; ") || "nothing";
}

// --- changes

/** @param {View} view @param {string} name */
async function resetDialog(view, name) {
  const group = await get(path`groups/${name}`, { signal: view.signal });
  const topics = [...new Set(group.offsets.map((/** @type {any} */ row) => row.topic))];
  const preview = h("div", { class: "stack" });
  openDialog(
    `Reset offsets of ${name}`,
    (close) => [
      group.members.length ? h("p", { class: "form-error" }, `The group has ${plural(group.members.length, "member")}: stop its consumers first. You can look at what would change.`) : h("p", {}, "Consumers of this group will go on from the new offsets."),
      resetForm(name, topics, preview, (body) => button("Reset the offsets", () => void reset(view, name, body, close, preview), { class: "danger", disabled: group.members.length > 0 })),
      preview,
    ],
    { wide: true },
  );
}

/**
 * Shows a plan and its button, and takes both away when the form changes: the button does what the form says.
 *
 * @param {string} name
 * @param {unknown[]} topics
 * @param {HTMLElement} preview
 * @param {(body: object) => HTMLElement} goButton
 */
function resetForm(name, topics, preview, goButton) {
  let edits = 0;
  const form = fieldForm({
    fields: [
      topics.length ? { name: "topic", label: "Topic", type: "select", required: true, options: topics.map((topic) => [String(topic), String(topic)]) } : { name: "topic", label: "Topic", required: true },
      { name: "to", label: "To", type: "select", required: true, options: [["earliest", "The oldest message"], ["latest", "The end: skip all messages"], ["offset", "An offset"], ["timestamp", "A time"]] },
      { name: "offset", label: "Offset", type: "number", min: 0, onlyFor: ["to", "offset"], help: "The same on all partitions of the topic." },
      { name: "at", label: "Time", type: "datetime-local", onlyFor: ["to", "timestamp"], help: "To the first message that is not older." },
    ],
    submitLabel: "Show what will change",
    submit: async (values) => {
      const asked = edits;
      fill(preview);
      const body = resetOf(values);
      const plan = await post(path`groups/${name}/offsets`, { ...body, dry_run: true });
      if (asked === edits) fill(preview, ...planOf(plan), h("div", { class: "actions" }, goButton(body)));
    },
  });
  form.addEventListener("input", () => {
    edits += 1;
    fill(preview);
  });
  return form;
}

/** @param {Record<string, any>} values */
function resetOf({ topic, to, offset, at }) {
  if (to === "timestamp" && !at) throw new ApiError(400, "invalid_field", "Give the time to reset to.", "at");
  if (to === "offset" && offset === null) throw new ApiError(400, "invalid_field", "Give the offset to reset to.", "offset");
  if (to === "timestamp") return { topic, timestamp_ms: new Date(at).getTime() };
  return { topic, to: to === "offset" ? offset : to };
}

/** @param {any} plan */
function planOf(plan) {
  const table = dataTable({
    caption: "What will change",
    noun: "partition",
    filterable: false,
    rowKey: (row) => String(row.partition),
    columns: [
      { title: "Partition", value: (row) => row.partition },
      { title: "Now", value: (row) => row.before, cell: (row) => count(row.before), numeric: true },
      { title: "After", value: (row) => row.offset, cell: (row) => count(row.offset), numeric: true },
      { title: "Change", value: (row) => changeOf(row), numeric: true, unsorted: true },
    ],
  });
  table.rows = plan.offsets;
  return [table];
}

/** @param {{before: number | null, offset: number}} row */
function changeOf({ before, offset }) {
  if (before === null) return "new";
  if (before === offset) return "none";
  return offset < before ? `${count(before - offset)} read again` : `${count(offset - before)} skipped`;
}

/** @param {View} view @param {string} name @param {object} body @param {() => void} close @param {HTMLElement} preview */
async function reset(view, name, body, close, preview) {
  try {
    await post(path`groups/${name}/offsets`, body);
  } catch (trouble) {
    fill(preview, h("p", { class: "form-error", role: "alert" }, trouble instanceof Error ? trouble.message : String(trouble)));
    return;
  }
  close();
  toast(`The offsets of ${name} were reset.`);
  view.reload();
}

/** @param {string} name */
function deleteGroup(name) {
  confirmDialog(`Delete ${name}?`, {
    text: "Its committed offsets are deleted. Messages stay. Consumers that come back begin where their settings say.",
    action: "Delete the group",
    typed: name,
    run: async () => {
      await remove(path`groups/${name}`);
      toast(`Group ${name} was deleted.`);
      navigate("groups");
    },
  });
}
