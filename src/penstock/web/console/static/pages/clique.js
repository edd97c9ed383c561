/** One clique: which worker owns which share of the slots, what is being handed over, and the messages of its streams. */

import { dataTable } from "../elements/data-table.js";
import { badge, emptyState, pageHead, section, tile } from "../elements/parts.js";
import { get, path } from "../lib/api.js";
import { h, show as fill, svg } from "../lib/dom.js";
import { ago, count, duration, plural } from "../lib/format.js";
import { live } from "../lib/live.js";
import { link } from "../lib/router.js";

const REFRESH_MS = 2_000;
const WIDTH = 1000;
const HEIGHT = 28;
const COLORS = 6;

/**
 * @typedef {{worker: string, member_id: string, since_ms: number, lease_ms: number, lease_left_ms: number, slots: number,
 *   share: number, revoking: number, overdue: number, leaving: boolean, streams: string[],
 *   in_flight: Record<string, number>}} Member
 * @typedef {{stream: string, partitions: number, undone: number | null, available: number | null, leased: number | null,
 *   deferred: number | null, dead_letter_topic: string, dead_letters: number | null}} Stream
 */

/** @param {import("../main.js").View} view */
export async function show(view) {
  const name = view.params.clique;
  const tiles = h("div", { class: "tiles" });
  const shares = h("div", { class: "shares" });
  const members = memberTable();
  const streams = streamTable();
  await live(view, REFRESH_MS, async () => {
    const found = await get(path`cliques/${name}`, { signal: view.signal });
    const owned = found.members.reduce((/** @type {number} */ sum, /** @type {Member} */ one) => sum + one.slots, 0);
    fill(
      tiles,
      tile("Workers", count(found.members.length), `last change ${ago(found.changed_ms)}`),
      tile("Slots", count(found.slots), owned < found.slots ? `${count(found.slots - owned)} have no owner now` : "all have an owner"),
      tile("Being handed over", count(found.handovers), found.handovers ? "their messages wait" : "nothing waits"),
      tile("In flight", count(found.members.reduce((/** @type {number} */ sum, /** @type {Member} */ one) => sum + inFlight(one), 0)), "messages that workers hold"),
    );
    fill(shares, shareBar(found.members, found.slots), shareLegend(found.members));
    members.rows = found.members.map((/** @type {Member} */ one, /** @type {number} */ at) => ({ ...one, at }));
    streams.rows = found.streams;
  });
  view.root.append(pageHead(name, { trail: [link("cliques", "Cliques")] }), tiles, section("Shares of the keys", shares), section("Workers", members), section("Streams", streams));
}

/** The slots as one bar: a part for each worker, hatched where slots are leaving it. @param {Member[]} members @param {number} slots */
function shareBar(members, slots) {
  const label = members.map((one) => `${one.worker} ${percent(one.share)}`).join(", ") || "no slot has an owner";
  let from = 0;
  const parts = members.flatMap((one, at) => {
    const width = (one.slots / slots) * WIDTH;
    const leaving = Math.min(width, (one.revoking / slots) * WIDTH);
    const x = from;
    from += width;
    const title = svg("title", {}, `${one.worker}: ${plural(one.slots, "slot")}`);
    return [
      svg("rect", { x, y: 0, width, height: HEIGHT, class: `share share-${at % COLORS}` }, title),
      leaving ? svg("rect", { x: x + width - leaving, y: HEIGHT * 0.6, width: leaving, height: HEIGHT * 0.4, class: "share-leaving" }) : null,
    ];
  });
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `Shares: ${label}`, class: "share-bar" }, svg("rect", { x: 0, y: 0, width: WIDTH, height: HEIGHT, class: "share-none" }), ...parts);
}

/** @param {Member[]} members */
function shareLegend(members) {
  return h("div", { class: "legend" }, ...members.map((one, at) => h("span", { class: "legend-row" }, h("span", { class: `swatch share-${at % COLORS}` }), `${one.worker} `, h("b", {}, percent(one.share)))));
}

/** @param {number} share */
function percent(share) {
  return `${(share * 100).toFixed(1)} %`;
}

function memberTable() {
  return dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<Member & {at: number}>>} */ ({
      caption: "Workers",
      noun: "worker",
      filterable: false,
      rowKey: (one) => one.member_id,
      empty: () => emptyState("No worker is running", "Messages wait in the clique's queue until one starts."),
      columns: [
        { title: "Worker", value: (one) => one.worker, cell: (one) => [h("span", { class: `swatch share-${one.at % COLORS}` }), one.worker, " ", one.leaving ? badge("leaving", "warn") : null], class: "name" },
        { title: "Slots", value: (one) => one.slots, cell: (one) => count(one.slots), numeric: true },
        { title: "Share", value: (one) => one.share, cell: (one) => percent(one.share), numeric: true },
        { title: "To hand over", value: (one) => one.revoking, cell: (one) => [count(one.revoking), one.overdue ? badge(`${count(one.overdue)} overdue`, "bad") : null], numeric: true },
        { title: "In flight", value: (one) => inFlight(one), cell: (one) => count(inFlight(one)), numeric: true },
        { title: "Streams", value: (one) => one.streams.join(", "), class: "name" },
        { title: "Joined", value: (one) => -one.since_ms, cell: (one) => ago(one.since_ms) },
        { title: "Lease ends", value: (one) => one.lease_left_ms, cell: (one) => `in ${duration(one.lease_left_ms)} of ${duration(one.lease_ms)}` },
      ],
    }),
  );
}

/** @param {Member} one */
function inFlight(one) {
  return Object.values(one.in_flight).reduce((sum, number) => sum + number, 0);
}

function streamTable() {
  return dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<Stream>>} */ ({
      caption: "Streams",
      noun: "stream",
      filterable: false,
      rowKey: (one) => one.stream,
      columns: [
        { title: "Topic", value: (one) => one.stream, cell: (one) => link(path`topics/${one.stream}`, one.stream), class: "name" },
        { title: "Partitions", value: (one) => one.partitions, cell: (one) => count(one.partitions), numeric: true },
        { title: "Not done", value: (one) => one.undone, cell: (one) => count(one.undone), numeric: true },
        { title: "Waiting", value: (one) => one.available, cell: (one) => count(one.available), numeric: true },
        { title: "In flight", value: (one) => one.leased, cell: (one) => count(one.leased), numeric: true },
        { title: "Delayed", value: (one) => one.deferred, cell: (one) => count(one.deferred), numeric: true },
        { title: "Dead letters", value: (one) => one.dead_letters, cell: (one) => (one.dead_letters ? link(path`topics/${one.dead_letter_topic}`, count(one.dead_letters)) : count(one.dead_letters)), numeric: true },
      ],
    }),
  );
}
