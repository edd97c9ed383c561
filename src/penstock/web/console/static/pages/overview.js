/** The cluster at a glance: what flows, what waits, what is wrong. */

import { dataTable } from "../elements/data-table.js";
import { linePlot } from "../elements/line-plot.js";
import { badge, pageHead, section, tile } from "../elements/parts.js";
import { get, path } from "../lib/api.js";
import { h, show as fill } from "../lib/dom.js";
import { bytes, compact, count, plural, rate } from "../lib/format.js";
import { repeat } from "../lib/live.js";
import { permissions } from "../lib/permissions.js";
import { link } from "../lib/router.js";
import { stateOf as queueState } from "./queues.js";

/**
 * @typedef {{time_ms: number, bytes_in_rate: number, bytes_out_rate: number, message_rate: number, request_rate: number,
 *   connections: number, lag: number, ready: number, leased: number, delayed: number}} Sample
 */

const SUMMARY_MS = 10_000;
const SPAN_MS = 15 * 60 * 1000;
/** Queues that the page names. */
const NAMED = 5;

/** @param {import("../main.js").View} view */
export async function show(view) {
  const may = await permissions(view.signal);
  await (may("describe") ? showCluster(view) : showOwn(view));
}

/** For users who may not describe the cluster: what they may describe, and what is hidden. @param {import("../main.js").View} view */
async function showOwn(view) {
  const tiles = h("div", { class: "tiles" });
  const hidden = h(
    "div",
    { class: "why" },
    h("p", {}, badge("hidden", "warn"), " Throughput, nodes, alarms and the plots need the permission DESCRIBE on the cluster, which you do not have."),
    h("p", { class: "note" }, "Topics need DESCRIBE on the topic; groups, queues and subscriptions DESCRIBE on the group of the same name. Those that you may not describe are not counted here. Ask an administrator for a rule, or for the role viewer, which sees everything and changes nothing."),
  );
  const load = async () => {
    const [{ topics }, { groups }, { queues }, { subscriptions }] = await Promise.all(["topics", "groups", "queues", "subscriptions"].map((what) => get(what, { signal: view.signal })));
    const others = new Set([...queues.map((/** @type {any} */ one) => one.queue), ...subscriptions.map((/** @type {any} */ one) => one.subscription)]); // they have groups of their names
    const consumers = groups.filter((/** @type {any} */ one) => one.type.toLowerCase() !== "share" && !others.has(one.group));
    const sum = (/** @type {any[]} */ rows, /** @type {string} */ field) => rows.reduce((all, row) => all + (row[field] ?? 0), 0);
    fill(
      tiles,
      tile("Topics", link("topics", count(topics.length)), "that you may describe"),
      tile("Groups", link("groups", count(consumers.length)), `${count(sum(consumers, "lag"))} messages behind`),
      tile("Queues", link("queues", count(queues.length)), `${plural(sum(queues, "undone"), "message")} not done`),
      tile("Subscriptions", link("subscriptions", count(subscriptions.length)), `${count(sum(subscriptions, "lag"))} messages behind`),
    );
  };
  view.root.append(pageHead("Overview", { note: `Cluster ${view.me.cluster_id} · seen from node ${view.me.node_id} · version ${view.me.version}` }), tiles, hidden);
  await load();
  repeat(view, SUMMARY_MS, load);
}

/** @param {import("../main.js").View} view */
async function showCluster(view) {
  const head = h("div");
  const tiles = h("div", { class: "tiles" });
  const alarms = h("div");
  const plots = makePlots();
  const nodes = nodeTable();
  view.root.append(head, alarms, tiles, h("div", { class: "plots" }, ...plots.map(({ plot }) => plot)), section("Nodes", nodes));
  /** @type {Sample[]} */
  let samples = [];
  let summary = /** @type {any} */ (null);
  const draw = () => {
    if (summary === null) return;
    const last = samples.at(-1);
    fill(tiles, ...tilesOf(summary, last));
    plots.forEach(({ plot, series }) => plot.setData(samples.map((one) => one.time_ms), series.map(([name, value]) => ({ name, values: samples.map(value) }))));
  };
  const loadSummary = async () => {
    const [found, stuck] = await Promise.all([get("cluster/summary", { signal: view.signal }), findStuck()]);
    summary = found;
    fill(head, pageHead("Overview", { note: `Cluster ${summary.cluster_id} · ${summary.alone ? "one node" : plural(summary.nodes.length, "node")} · seen from node ${summary.node_id} · version ${view.me.version}` }));
    fill(alarms, alarmsOf(summary, stuck));
    nodes.rows = summary.nodes;
    draw();
  };
  const findStuck = async () => {
    await sampled;
    const { queues } = samples.at(-1)?.ready ? await get("queues", { signal: view.signal }) : { queues: [] };
    return queues.filter((/** @type {any} */ one) => queueState(one) === "stuck");
  };
  const loadSamples = async () => {
    const since = samples.at(-1)?.time_ms ?? 0;
    const { samples: more, interval_ms: intervalMs } = await get("cluster/samples", { query: { since_ms: since }, signal: view.signal });
    plots.forEach(({ plot }) => (plot.intervalMs = intervalMs));
    const fresh = more.filter((/** @type {Sample} */ one) => one.time_ms > since);
    samples = [...samples, ...fresh];
    const newest = samples.at(-1)?.time_ms ?? 0; // by the node's clock: the browser may have another time
    samples = samples.filter((one) => one.time_ms > newest - SPAN_MS - intervalMs);
    draw();
    return intervalMs;
  };
  const sampled = loadSamples();
  const [intervalMs] = await Promise.all([sampled, loadSummary()]);
  repeat(view, SUMMARY_MS, loadSummary);
  repeat(view, intervalMs, loadSamples);
}

/** @param {any} summary @param {Sample | undefined} last */
function tilesOf(summary, last) {
  const alive = summary.nodes.filter((/** @type {any} */ node) => node.state === "alive").length;
  return [
    tile("Messages in", last ? `${rate(last.message_rate)}/s` : "–", last ? `${plural(last.connections, "connection")}` : "the first figures come in seconds"),
    tile("Bytes in", last ? `${bytes(last.bytes_in_rate)}/s` : "–", last ? `${bytes(last.bytes_out_rate)}/s out` : null),
    tile("Lag of groups", last ? count(last.lag) : "–", "messages that are not committed"),
    tile("In queues", last ? count(last.ready + last.leased + last.delayed) : "–", last ? `${count(last.ready)} ready, ${count(last.leased)} leased` : null),
    tile("Topics", count(summary.topics), `${plural(summary.partitions, "partition")} with the broker's own`),
    tile("Nodes", `${count(alive)} of ${count(summary.nodes.length)}`, summary.controller === null ? "no controller" : `node ${summary.controller} is the controller`),
  ];
}

/** @param {any} summary @param {any[]} stuck queues */
function alarmsOf(summary, stuck) {
  if (!summary.troubles.length && !summary.notes.length && !stuck.length) return h("p", { class: "all-well" }, badge("healthy", "good"), " Nothing needs attention.");
  return h(
    "div",
    { class: summary.troubles.length ? "alarms" : "alarms mild", role: "alert" },
    h("h2", {}, summary.troubles.length ? plural(summary.troubles.length, "alarm") : "To know"),
    h(
      "ul",
      {},
      ...summary.troubles.map((/** @type {string} */ text) => h("li", {}, badge("alarm", "bad"), ` ${text}`)),
      ...summary.notes.map((/** @type {string} */ text) => h("li", {}, badge("note", "warn"), ` ${text}`)),
      stuck.length ? h("li", {}, badge("stuck", "warn"), ` ${stuck.length === 1 ? "A queue has" : `${count(stuck.length)} queues have`} ready messages and settled none in the last minute: `, ...queueLinks(stuck), ".") : null,
    ),
  );
}

/** @param {any[]} queues */
function queueLinks(queues) {
  const links = queues.slice(0, NAMED).flatMap(({ queue }, at) => [at ? ", " : null, link(path`queues/${queue}`, queue)]);
  return queues.length > NAMED ? [...links, ", ", link("queues", `${count(queues.length - NAMED)} more`)] : links;
}

/** @returns {{plot: import("../elements/line-plot.js").LinePlot, series: [string, (one: Sample) => number][]}[]} */
function makePlots() {
  return [
    { plot: linePlot("Messages per second"), series: [["in", (one) => one.message_rate]] },
    { plot: linePlot("Bytes per second", bytes), series: [["in", (one) => one.bytes_in_rate], ["out", (one) => one.bytes_out_rate]] },
    { plot: linePlot("Lag of consumer groups"), series: [["messages", (one) => one.lag]] },
    { plot: linePlot("Messages in queues", compact), series: [["ready", (one) => one.ready], ["leased", (one) => one.leased], ["delayed", (one) => one.delayed]] },
  ];
}

function nodeTable() {
  return dataTable({
    caption: "Nodes",
    noun: "node",
    filterable: false,
    rowKey: (node) => String(node.node_id),
    columns: [
      { title: "Node", value: (node) => node.node_id },
      { title: "State", value: (node) => node.state, cell: (node) => stateOf(node) },
      { title: "Role", value: (node) => (node.controller ? "controller" : ""), cell: (node) => (node.controller ? "controller" : "–") },
      { title: "Leads", value: (node) => node.leads, cell: (node) => count(node.leads), numeric: true },
      { title: "Replicas", value: (node) => node.hosts, cell: (node) => count(node.hosts), numeric: true },
      { title: "Rack", value: (node) => node.rack },
      { title: "Kafka", value: (node) => node.kafka },
      { title: "HTTP", value: (node) => node.http },
      { title: "Version", value: (node) => node.version },
    ],
  });
}

/** @param {any} node */
function stateOf(node) {
  const words = [badge(node.state, node.state === "alive" ? "good" : "bad")];
  if (node.fenced) words.push(badge("fenced", "bad"));
  if (node.decommissioning) words.push(badge("leaving", "warn"));
  return words;
}
