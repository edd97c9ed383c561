/** The cluster as a picture: racks, their nodes, and the replicas on each; moves under way; nodes that leave. */

import { dataTable } from "../elements/data-table.js";
import { confirmDialog, openDialog } from "../elements/dialog.js";
import { badge, button, emptyState, facts, pageHead, section, tabs } from "../elements/parts.js";
import { toast, toastError } from "../elements/toast.js";
import { get, path, post, remove } from "../lib/api.js";
import { h, show as fill } from "../lib/dom.js";
import { bytes, count, plural } from "../lib/format.js";
import { pause, repeat } from "../lib/live.js";
import { permissions } from "../lib/permissions.js";
import { link } from "../lib/router.js";

const REFRESH_MS = 5_000;
/** Between two steps of a rebalance. */
const STEP_MS = 2_000;
/** More cells than this say nothing to a reader, and cost the browser a second. */
const MAX_CELLS = 3_000;

/**
 * @typedef {{node_id: number, state: string, fenced: boolean, decommissioning: boolean, controller: boolean,
 *   metadata_role: string | null, kafka: string, http: string | null, rack: string | null,
 *   machine?: string | null, version: string}} ClusterNode
 * @typedef {{node_id: number, end_offset: number, bytes_behind: number}} Progress
 * @typedef {{topic: string, partition: number, leader: number | null, replicas: number[], in_sync: number[],
 *   adding: number[], removing: number[], offline: number[], damaged: number[], lag: number | null,
 *   progress: Progress[]}} Partition
 * @typedef {{topic: string, partition: number, replicas: number[], target: number[], adding: number[],
 *   removing: number[], bytes_behind: number | null}} Move
 * @typedef {{nodes: ClusterNode[], partitions: Partition[], moves: Move[], troubles: string[], alone: boolean,
 *   cluster_id: string, controller: number | null}} Report
 */

/** The parts of the cluster's pages. @param {string} current */
export function clusterTabs(current) {
  return tabs(
    "Parts of the cluster",
    [
      { id: "nodes", title: "Nodes and replicas", href: "cluster" },
      { id: "log", title: "Status log", href: "cluster/log" },
    ],
    current,
  );
}

/** @param {import("../main.js").View} view */
export async function show(view) {
  const picture = h("div", { class: "racks" });
  const choice = h("select", { id: "topic" });
  const note = h("p", { class: "note" }, "There are too many replicas to draw each of them: choose a topic.");
  const troubles = h("div");
  const moves = moveTable();
  const ask = () => get("cluster", { signal: view.signal });
  let [report, may] = /** @type {[Report, import("../lib/permissions.js").May]} */ (await Promise.all([ask(), permissions(view.signal)]));
  const mayAlter = may("alter") && !report.alone;
  const draw = () => {
    const shown = report.partitions.filter((one) => !choice.value || one.topic === choice.value);
    const isCrowded = shown.reduce((sum, one) => sum + one.replicas.length, 0) > MAX_CELLS;
    note.hidden = !isCrowded;
    const leaving = mayAlter ? (/** @type {ClusterNode} */ node) => leaveButton(node, load) : () => null;
    fill(picture, ...racksOf(report.nodes).map(([rack, nodes]) => rackBox(rack, nodes, shown, isCrowded, leaving)));
  };
  const update = (/** @type {Report} */ next) => {
    report = next;
    fillTopics(choice, report.partitions, choice.value || view.query.get("topic"));
    fill(troubles, troublesOf(report));
    moves.rows = report.moves.map((move) => withProgress(move, report.partitions));
    draw();
  };
  const load = async () => update(await ask());
  choice.addEventListener("change", () => (view.query.delete("topic"), view.setQuery({ topic: choice.value || null }), draw()));
  linkCells(picture);
  update(report);
  repeat(view, REFRESH_MS, load);
  const actions = mayAlter ? [button("Rebalance", () => void planRebalance(view), { class: "primary" })] : [];
  view.root.append(
    pageHead("Cluster", { actions, note: may("alter") ? null : "You may look at the cluster, and not change it." }),
    clusterTabs("nodes"),
    troubles,
    h("div", { class: "toolbar" }, h("label", { for: "topic" }, "Topic"), choice, legend()),
    note,
    picture,
    section("Moves", moves),
  );
}

/** @param {HTMLSelectElement} choice @param {Partition[]} partitions @param {string | null} current */
function fillTopics(choice, partitions, current) {
  const names = [...new Set(partitions.map((one) => one.topic))].sort();
  fill(choice, h("option", { value: "" }, "all"), ...names.map((name) => h("option", { value: name }, name)));
  choice.value = current && names.includes(current) ? current : "";
}

/** @param {Report} report */
function troublesOf(report) {
  if (!report.troubles.length) return h("p", { class: "all-well" }, badge("healthy", "good"), report.alone ? " One node, which is the whole cluster." : " One node can fail without loss.");
  return h("div", { class: "alarms", role: "alert" }, h("ul", {}, ...report.troubles.map((text) => h("li", {}, badge("alarm", "bad"), ` ${text}`))));
}

// --- the picture

/** @param {ClusterNode[]} nodes @returns {[string, ClusterNode[]][]} */
function racksOf(nodes) {
  /** @type {Map<string, ClusterNode[]>} */
  const racks = new Map();
  for (const node of nodes) racks.set(node.rack ?? "", [...(racks.get(node.rack ?? "") ?? []), node]);
  return [...racks].sort(([one], [other]) => one.localeCompare(other, "en", { numeric: true }));
}

/** @param {string} rack @param {ClusterNode[]} nodes @param {Partition[]} partitions @param {boolean} isCrowded @param {(node: ClusterNode) => Node | null} leaving */
function rackBox(rack, nodes, partitions, isCrowded, leaving) {
  return h("section", { class: "rack" }, h("h2", {}, rack ? `Rack ${rack}` : "No rack"), ...nodes.map((node) => nodeBox(node, partitions, isCrowded, leaving)));
}

/** @param {ClusterNode} node @param {Partition[]} partitions @param {boolean} isCrowded @param {(node: ClusterNode) => Node | null} leaving */
function nodeBox(node, partitions, isCrowded, leaving) {
  const mine = partitions.filter((one) => one.replicas.includes(node.node_id) || one.adding.includes(node.node_id));
  const leads = mine.filter((one) => one.leader === node.node_id).length;
  const summary = `Node ${node.node_id}: ${plural(mine.length, "replica")}, leads ${count(leads)}`;
  const cells = isCrowded ? null : h("div", { class: "cells", role: "img", "aria-label": summary }, ...mine.map((one) => replicaCell(one, node)));
  return h(
    "article",
    { class: node.state === "alive" ? "node" : "node gone" },
    h("header", {}, h("h3", {}, `Node ${node.node_id}`), ...nodeBadges(node)),
    facts([["Leads", count(leads)], ["Replicas", count(mine.length)], ["Kafka", node.kafka], ["Version", node.version], ...(node.machine ? [/** @type {[string, string]} */ (["Machine", node.machine])] : [])]),
    cells,
    h("div", { class: "actions" }, leaving(node)),
  );
}

/** @param {ClusterNode} node */
function nodeBadges(node) {
  return [
    badge(node.state, node.state === "alive" ? "good" : "bad"),
    node.controller ? badge("controller") : node.metadata_role === "voter" ? badge("voter") : null,
    node.fenced ? badge("fenced", "bad") : null,
    node.decommissioning ? badge("leaving", "warn") : null,
  ];
}

/** @param {Partition} one @param {ClusterNode} node */
function replicaCell(one, node) {
  const [kind, words] = replicaState(one, node);
  return h("span", { class: `cell ${kind}`, title: `${one.topic}/${one.partition}: ${words}`, "data-partition": `${one.topic}/${one.partition}` });
}

/** @param {Partition} one @param {ClusterNode} host @returns {[string, string]} */
function replicaState(one, host) {
  const node = host.node_id;
  if (host.state !== "alive") return ["offline", `its node is ${host.state}`];
  if (one.offline.includes(node)) return ["offline", "offline"];
  if (one.damaged.includes(node)) return ["offline", "damaged"];
  if (one.leader === null) return ["offline", "no leader"];
  if (one.adding.includes(node)) return ["adding", "is being copied here"];
  if (one.leader === node) return ["leads", "leader"];
  if (one.in_sync.includes(node)) return ["follows", "in sync"];
  return ["behind", "behind its leader"];
}

function legend() {
  const kinds = [["leads", "leader"], ["follows", "in sync"], ["behind", "behind"], ["adding", "being copied"], ["offline", "offline"]];
  return h("ul", { class: "cell-legend" }, ...kinds.map(([kind, words]) => h("li", {}, h("span", { class: `cell ${kind}` }), words)));
}

/** A pointer on one replica shows the others of its partition. @param {HTMLElement} picture */
function linkCells(picture) {
  const mark = (/** @type {string | undefined} */ partition) => {
    for (const cell of /** @type {NodeListOf<HTMLElement>} */ (picture.querySelectorAll(".cell"))) cell.classList.toggle("same", partition !== undefined && cell.dataset.partition === partition);
  };
  picture.addEventListener("pointerover", (event) => mark(event.target instanceof HTMLElement ? event.target.dataset.partition : undefined));
  picture.addEventListener("pointerleave", () => mark(undefined));
}

// --- moves

/** @typedef {Move & {done: number | null}} ShownMove */

/** @param {Move} move @param {Partition[]} partitions @returns {ShownMove} */
function withProgress(move, partitions) {
  const partition = partitions.find((one) => one.topic === move.topic && one.partition === move.partition);
  const ends = new Map((partition?.progress ?? []).map((one) => [one.node_id, one.end_offset]));
  const whole = ends.get(partition?.leader ?? -1) ?? null;
  const coming = move.adding.map((node) => ends.get(node) ?? 0);
  if (whole === null || !coming.length) return { ...move, done: null };
  return { ...move, done: whole === 0 ? 1 : Math.min(1, Math.min(...coming) / whole) };
}

function moveTable() {
  return dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<ShownMove>>} */ ({
      caption: "Moves under way",
      noun: "move",
      filterable: false,
      rowKey: (move) => `${move.topic}/${move.partition}`,
      empty: () => h("p", { class: "note" }, "No partition is moving. Rebalance spreads replicas and leaders evenly, for example after a node was added."),
      columns: [
        { title: "Topic", value: (move) => move.topic, cell: (move) => link(path`topics/${move.topic}`, move.topic), class: "name" },
        { title: "Partition", value: (move) => move.partition, numeric: true },
        { title: "From", value: (move) => move.replicas.join(", ") },
        { title: "To", value: (move) => move.target.join(", ") },
        { title: "Progress", value: (move) => move.done, cell: (move) => progressOf(move) },
        { title: "Left", value: (move) => move.bytes_behind, cell: (move) => bytes(move.bytes_behind), numeric: true },
      ],
    }),
  );
}

/** @param {ShownMove} move */
function progressOf(move) {
  if (move.done === null) return "not known";
  const percent = Math.floor(move.done * 100);
  return [h("progress", { value: percent, max: 100, "aria-label": `Progress of ${move.topic} partition ${move.partition}` }), ` ${percent} %`];
}

// --- changes

/** @param {ClusterNode} node @param {() => Promise<void>} load */
function leaveButton(node, load) {
  if (node.decommissioning) return button("Keep", () => void keepNode(node, load), { "aria-label": `Keep node ${node.node_id}` });
  return button("Decommission", () => decommission(node, load), { class: "danger", "aria-label": `Decommission node ${node.node_id}` });
}

/** @param {ClusterNode} node @param {() => Promise<void>} load */
function decommission(node, load) {
  confirmDialog(`Decommission node ${node.node_id}?`, {
    text: "All of its replicas move to other nodes, and then it leaves the cluster. Clients go on meanwhile. You can keep it until it has left.",
    action: "Decommission",
    run: async () => {
      await post(path`cluster/nodes/${node.node_id}/decommission`, {});
      toast(`Node ${node.node_id} is leaving.`);
      await load();
    },
  });
}

/** @param {ClusterNode} node @param {() => Promise<void>} load */
async function keepNode(node, load) {
  try {
    await remove(path`cluster/nodes/${node.node_id}/decommission`);
    toast(`Node ${node.node_id} stays.`);
    await load();
  } catch (trouble) {
    toastError(trouble);
  }
}

/** @param {import("../main.js").View} view */
async function planRebalance(view) {
  try {
    const plan = await post("cluster/rebalance", { dry_run: true });
    openDialog("Rebalance", (close) => planOf(plan, close, view), { wide: true });
  } catch (trouble) {
    toastError(trouble);
  }
}

/** @param {any} plan @param {() => void} close @param {import("../main.js").View} view */
function planOf(plan, close, view) {
  const steps = plan.moves_left.length + plan.leads_left.length;
  if (!steps) return [emptyState("The cluster is balanced", plan.under_way ? `${plural(plan.under_way, "move")} under way.` : "Replicas and leaders are spread evenly.")];
  const table = dataTable({ caption: "Planned moves", noun: "step", rowKey: (row) => `${row.what} ${row.place}`, columns: [
    { title: "Partition", value: (row) => row.place, class: "name" },
    { title: "From", value: (row) => row.from },
    { title: "To", value: (row) => row.to },
    { title: "Why", value: (row) => row.what, class: "prose" },
  ] });
  table.rows = [
    ...plan.moves_left.map((/** @type {any} */ one) => ({ place: `${one.topic}/${one.partition}`, from: `nodes ${one.replicas.join(", ")}`, to: `nodes ${one.target.join(", ")}`, what: one.reason })),
    ...plan.leads_left.map((/** @type {any} */ one) => ({ place: `${one.topic}/${one.partition}`, from: `led by node ${one.leader}`, to: `led by node ${one.to}`, what: "its preferred leader" })),
  ];
  const begin = button(`Begin ${plural(steps, "step")}`, () => (close(), void rebalance(view)), { class: "primary" });
  return [h("p", {}, "Clients go on meanwhile. A few partitions move at a time; the console begins the next ones while this page is open."), table, h("div", { class: "actions" }, begin, button("Cancel", close))];
}

/** Repeats the step until nothing is left to begin, or the page is left. @param {import("../main.js").View} view */
async function rebalance(view) {
  try {
    while (!view.signal.aborted) {
      const step = await post("cluster/rebalance", {});
      const begun = step.begun.length + step.handed_over.length;
      if (begun) toast(`${plural(begun, "step")} begun.`);
      if (!step.moves_left.length && !step.leads_left.length && !step.under_way) return toast("The cluster is balanced.");
      await pause(STEP_MS, view.signal);
    }
  } catch (trouble) {
    toastError(trouble);
  }
}
