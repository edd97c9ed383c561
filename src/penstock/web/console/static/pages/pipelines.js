/**
 * Streams of Spark that read or write topics. A stream that reads shows its progress in a consumer group, whose name begins
 * with the source's prefix; one that writes exactly once owns a transactional id.
 */

import { dataTable } from "../elements/data-table.js";
import { linePlot } from "../elements/line-plot.js";
import { badge, emptyState, pageHead, section, tile } from "../elements/parts.js";
import { ApiError, get, path } from "../lib/api.js";
import { h, show as fill } from "../lib/dom.js";
import { ago, count, duration, rate } from "../lib/format.js";
import { live } from "../lib/live.js";
import { link } from "../lib/router.js";
import { topicLinks } from "./subscriptions.js";

const REFRESH_MS = 5_000;
/** What the source calls groups, unless groupIdPrefix or kafka.group.id say otherwise. */
const READER_PREFIX = "spark-penstock-source";
const WRITER_PREFIX = "spark-";
/** The transactional ids that a writer lends to its tasks: OWNER.attempt-1-0. */
const ATTEMPT = /^(.*)\.attempt-[0-9]+-[0-9]+$/s;
/** Each costs a request. */
const MAX_READERS = 50;
const PLOTTED = 3;
const WINDOW_MS = 60_000;
/** So many tell where the lag goes. */
const FORECAST_LOOKS = 4;
/** A change of the lag by less than this part is none. */
const NOISE = 0.1;

/**
 * @typedef {{group: string, topics: string[], committed: number, lag: number, rate: number | null, moved: number | null,
 *   isNew: boolean, leftMs: number | null, trend: string}} Reader `leftMs`: until it has caught up, if the lag falls as it did in the last minute
 * @typedef {{owner: string, topics: string[], tasks: number, since: number | null, coordinator: number}} Writer
 */

/** @param {import("../main.js").View} view */
export async function show(view) {
  const prefix = h("input", { id: "prefix", type: "text", value: view.query.get("prefix") ?? READER_PREFIX, spellcheck: "false" });
  const tiles = h("div", { class: "tiles" });
  const note = h("p", { class: "note" });
  const plot = linePlot("Lag of the streams that are farthest behind");
  const readers = readerTable();
  const writers = writerTable();
  const progress = new Progress();
  const load = async () => {
    const [found, { transactions }] = await Promise.all([readersOf(prefix.value, view.signal), get("transactions", { query: { state: "any" }, signal: view.signal })]);
    readers.rows = found.groups.map((group) => progress.look(group));
    writers.rows = writersOf(transactions);
    note.hidden = !found.left;
    note.textContent = `${count(found.left)} more groups have this prefix: give a longer one to see them.`;
    fill(tiles, ...tilesOf(readers.rows, writers.rows));
    await drawPlot(plot, readers.rows, view.signal);
  };
  prefix.addEventListener("change", () => (view.setQuery({ prefix: prefix.value === READER_PREFIX ? null : prefix.value }), void load()));
  await live(view, REFRESH_MS, load);
  view.root.append(
    pageHead("Pipelines", { note: "Streams of Spark that read or write topics." }),
    tiles,
    plot,
    section("Streams that read", h("div", { class: "toolbar" }, h("label", { for: "prefix" }, "Groups that begin with"), prefix), note, readers),
    section("Streams that write", writers),
  );
}

/** @param {Reader[]} readers @param {Writer[]} writers */
function tilesOf(readers, writers) {
  const known = readers.map((one) => one.rate).filter((value) => value !== null);
  return [
    tile("Streams that read", count(readers.length)),
    tile("Lag", count(readers.reduce((sum, one) => sum + one.lag, 0)), "messages of all streams"),
    tile("Read", known.length ? `${rate(known.reduce((sum, value) => sum + (value ?? 0), 0))}/s` : "–", known.length ? "messages of all streams" : "known in some seconds"),
    tile("Streams that write", count(writers.length), writers.some((one) => one.tasks) ? "some are writing now" : null),
  ];
}

// --- streams that read

/** @param {string} prefix @param {AbortSignal} signal @returns {Promise<{groups: any[], left: number}>} */
async function readersOf(prefix, signal) {
  const { groups } = await get("groups", { signal });
  const names = groups.map((/** @type {any} */ one) => one.group).filter((/** @type {string} */ name) => name.startsWith(prefix));
  const shown = await Promise.all(names.slice(0, MAX_READERS).map((/** @type {string} */ name) => describe(name, signal)));
  return { groups: shown.filter(Boolean), left: Math.max(0, names.length - MAX_READERS) };
}

/** A group may be gone since it was listed. @param {string} name @param {AbortSignal} signal */
async function describe(name, signal) {
  try {
    return await get(path`groups/${name}`, { signal });
  } catch (trouble) {
    if (trouble instanceof ApiError && trouble.status === 404) return null;
    throw trouble;
  }
}

/** How quickly committed offsets and the lag move, over the last minute that the page is open: a stream commits once in a micro-batch. */
class Progress {
  #since = Date.now();
  /** @type {Map<string, {at: number, committed: number, lag: number}[]>} */
  #seen = new Map();

  /** @param {any} group @returns {Reader} */
  look(group) {
    const at = Date.now();
    const committed = group.offsets.reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + row.committed_offset, 0);
    const before = (this.#seen.get(group.group) ?? []).filter((one) => one.at > at - WINDOW_MS);
    const looks = [...before, { at, committed, lag: group.lag }];
    this.#seen.set(group.group, looks);
    const [first] = looks;
    const moved = looks.findLast((one, number) => number > 0 && one.committed > looks[number - 1].committed);
    return {
      group: group.group,
      topics: [...new Set(/** @type {string[]} */ (group.offsets.map((/** @type {any} */ row) => row.topic)))],
      committed,
      lag: group.lag,
      rate: before.length ? Math.max(0, committed - first.committed) / Math.max(0.001, (at - first.at) / 1000) : null,
      moved: moved?.at ?? null,
      isNew: at - this.#since < WINDOW_MS,
      ...forecast(looks),
    };
  }
}

/**
 * When the lag is gone, by the line that fits it best. Lag that has changed little does not tell.
 *
 * @param {{at: number, lag: number}[]} looks
 * @returns {{leftMs: number | null, trend: string}}
 */
function forecast(looks) {
  const mean = (/** @type {number[]} */ values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [middle, usual] = [mean(looks.map((one) => one.at)), mean(looks.map((one) => one.lag))];
  const spread = looks.reduce((sum, one) => sum + (one.at - middle) ** 2, 0);
  const lag = looks[looks.length - 1].lag;
  if (lag === 0 || looks.length < FORECAST_LOOKS || spread === 0) return { leftMs: null, trend: "–" };
  const slope = looks.reduce((sum, one) => sum + (one.at - middle) * (one.lag - usual), 0) / spread;
  const change = slope * (looks[looks.length - 1].at - looks[0].at);
  if (Math.abs(change) < usual * NOISE) return { leftMs: null, trend: "keeps its distance" };
  return slope > 0 ? { leftMs: Infinity, trend: "falls behind" } : { leftMs: -lag / slope, trend: `in ${duration(-lag / slope)}` };
}

function readerTable() {
  return dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<Reader>>} */ ({
      caption: "Streams that read",
      noun: "stream",
      filterable: false,
      rowKey: (one) => one.group,
      empty: () =>
        emptyState("No stream reads with this prefix", "A stream appears when its first micro-batch is done. Give the source the option queryName to name it; groups with a kafka.group.id of your own are found by the prefix above."),
      columns: [
        { title: "Group", value: (one) => one.group, cell: (one) => link(path`groups/${one.group}`, one.group), class: "name" },
        { title: "Reads", value: (one) => one.topics.join(", "), cell: (one) => topicLinks(one.topics), class: "name" },
        { title: "State", value: (one) => (one.lag === 0 ? "caught up" : "behind"), cell: (one) => (one.lag === 0 ? badge("caught up", "good") : badge("behind", "warn")) },
        { title: "Lag", value: (one) => one.lag, cell: (one) => count(one.lag), numeric: true },
        { title: "Read per second", value: (one) => one.rate, cell: (one) => rate(one.rate), numeric: true },
        { title: "Last progress", value: (one) => one.moved, cell: (one) => (one.moved !== null ? ago(one.moved) : one.isNew ? "not seen yet" : "none seen in a minute") },
        { title: "Caught up", value: (one) => one.leftMs, cell: (one) => (one.leftMs === Infinity ? badge(one.trend, "warn") : one.trend) },
      ],
    }),
  );
}

/** @param {import("../elements/line-plot.js").LinePlot} plot @param {Reader[]} readers @param {AbortSignal} signal */
async function drawPlot(plot, readers, signal) {
  const worst = [...readers].sort((one, other) => other.lag - one.lag).slice(0, PLOTTED);
  plot.hidden = !worst.length;
  const told = await Promise.all(worst.map((one) => get(path`groups/${one.group}/samples`, { signal })));
  const times = [...new Set(/** @type {number[]} */ (told.flatMap((one) => one.samples.map((/** @type {any} */ sample) => sample.time_ms))))].sort((one, other) => one - other);
  if (told.length) plot.intervalMs = told[0].interval_ms;
  plot.setData(
    times,
    told.map((one) => {
      const lags = new Map(one.samples.map((/** @type {any} */ sample) => [sample.time_ms, sample.lag]));
      return { name: one.group, values: times.map((at) => /** @type {number | null} */ (lags.get(at) ?? null)) };
    }),
  );
}

// --- streams that write

/** @param {any[]} transactions @returns {Writer[]} */
function writersOf(transactions) {
  /** @type {Map<string, Writer>} */
  const found = new Map();
  for (const one of transactions) {
    if (!one.transactional_id.startsWith(WRITER_PREFIX)) continue;
    const owner = ATTEMPT.exec(one.transactional_id)?.[1] ?? one.transactional_id;
    /** @type {Writer} */
    const writer = found.get(owner) ?? { owner, topics: [], tasks: 0, since: null, coordinator: one.coordinator };
    found.set(owner, writer);
    if (one.start_ms === null) continue;
    writer.tasks += 1;
    writer.since = Math.min(writer.since ?? one.start_ms, one.start_ms);
    for (const { topic } of one.topics) if (!writer.topics.includes(topic)) writer.topics.push(topic);
  }
  return [...found.values()];
}

function writerTable() {
  return dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<Writer>>} */ ({
      caption: "Streams that write",
      noun: "stream",
      filterable: false,
      rowKey: (one) => one.owner,
      empty: () => emptyState("No stream writes in transactions", "Streaming queries that write with format penstock appear here. With exactlyOnce=false they write without transactions, and the broker cannot tell them from other producers."),
      columns: [
        { title: "Transactional id", value: (one) => one.owner, class: "name" },
        { title: "State", value: (one) => (one.tasks ? "writing" : "idle"), cell: (one) => (one.tasks ? badge("writing", "good") : badge("idle")) },
        { title: "Open tasks", value: (one) => one.tasks, cell: (one) => count(one.tasks), numeric: true },
        { title: "Writing since", value: (one) => one.since, cell: (one) => (one.since === null ? "–" : ago(one.since)) },
        { title: "Writes to", value: (one) => one.topics.join(", "), cell: (one) => (one.topics.length ? topicLinks(one.topics) : "–"), class: "name" },
        { title: "Coordinator", value: (one) => one.coordinator, cell: (one) => `node\u00a0${one.coordinator}` },
      ],
    }),
  );
}
