/** Messages of a topic: browse, filter, tail; each in detail; publish. */

import { dataTable } from "../elements/data-table.js";
import { downloadDialog } from "../elements/download.js";
import { messageLink, openMessage } from "../elements/message.js";
import { button, emptyState, errorState, pageHead } from "../elements/parts.js";
import { publishDialog } from "../elements/publish.js";
import { ApiError, get, path } from "../lib/api.js";
import { Scan, scanned } from "../lib/browse.js";
import { h, show as fill, uniqueId } from "../lib/dom.js";
import { count, plural, time, timeOfDay } from "../lib/format.js";
import { pause, visible } from "../lib/live.js";
import { fieldOf, keyText, parsedJson, readable, valueText } from "../lib/payload.js";
import { permissions } from "../lib/permissions.js";
import { link } from "../lib/router.js";
import { topicTabs } from "./topic.js";

/** @typedef {import("../lib/browse.js").Message} Message */
/** @typedef {import("../lib/browse.js").Progress} Progress */
/** @typedef {import("../main.js").View} View */

const KEPT_MESSAGES = 1000;
/** Before a lost tail is opened again; each failure doubles it. */
const RETRY_MS = 1_000;
const RETRY_MAX_MS = 10_000;
/** The most messages that the API finds at once. */
const MOST = 500;
/** More are asked for by their number. */
const LISTED_PARTITIONS = 1000;

const STARTS = /** @type {[string, string][]} */ ([
  ["newest", "The newest"],
  ["oldest", "The oldest"],
  ["offset", "From an offset"],
  ["timestamp", "From a time"],
  ["tail", "Live, as they come"],
]);

/** What is asked for; all of it is in the address. */
const FIELDS = ["start", "offset", "at", "partition", "limit", "key", "value", "header", "header_value", "field", "field_value", "columns"];

/** @param {View} view */
export async function show(view) {
  const topic = view.params.topic;
  const [{ partitions }, may] = await Promise.all([get(path`topics/${topic}`, { signal: view.signal }), permissions(view.signal, "topic", topic)]);
  new MessagesPage(view, topic, partitions.length, may("write"));
}

class MessagesPage {
  /** @type {Scan | null} */
  #scan = null;
  #ended = new AbortController();
  /** @type {Message[]} */
  #messages = [];
  /** Those that came while the tail was paused. @type {Message[]} */
  #held = [];
  /** Of a tail. */
  #shown = 0;
  #isLost = false;
  #retryMs = RETRY_MS;

  /** @param {View} view @param {string} topic @param {number} partitions @param {boolean} mayWrite */
  constructor(view, topic, partitions, mayWrite) {
    this.view = view;
    this.topic = topic;
    this.partitions = partitions;
    this.inputs = makeInputs(view.query, partitions);
    this.bar = h("progress", { max: 1, value: 0, "aria-label": "How much was scanned" });
    this.told = h("span", { role: "status" });
    this.notice = h("div", { role: "status" });
    this.stopButton = button("Stop", () => this.stop(), { class: "danger" });
    this.pauseButton = button("Pause", () => this.pause());
    this.table = messageTable(this);
    this.form = this.makeForm();
    view.root.append(
      pageHead(topic, { trail: [link("topics", "Topics")], actions: [mayWrite ? button("Publish", () => publishDialog(topic, partitions, () => this.search()), { class: "primary" }) : null, button("Download", () => this.download())] }),
      topicTabs(topic, "messages"),
      this.form,
      h("div", { class: "scan" }, this.bar, this.told, this.pauseButton, this.stopButton),
      this.notice,
      this.table,
    );
    view.signal.addEventListener("abort", () => this.#ended.abort(), { once: true });
    this.start(partitions);
  }

  /** The first search, as the address says. @param {number} partitions */
  start(partitions) {
    const { query } = this.view;
    const partition = query.get("partition") ?? "";
    if (/^\d*$/.test(partition) && Number(partition) < partitions) return this.search(query.get("show") === "message");
    this.running(false, false);
    fill(this.notice, h("p", { class: "why" }, `Partition ${partition} does not exist: ${this.topic} has ${plural(partitions, "partition")}, which are numbered from 0.`));
  }

  makeForm() {
    const { start, offset, at, partition, limit, key, value, header, header_value, field, field_value, columns } = this.inputs;
    const ask = (/** @type {{row: HTMLElement, input: HTMLInputElement | HTMLSelectElement}} */ one, /** @type {boolean} */ isAsked) => {
      one.row.hidden = one.input.disabled = !isAsked;
      one.input.required = isAsked;
    };
    const when = () => {
      ask(offset, start.input.value === "offset");
      ask(at, start.input.value === "timestamp");
      ask(limit, start.input.value !== "tail");
    };
    start.input.addEventListener("change", when);
    when();
    const filters = [key, value, header, header_value, field, field_value];
    const more = h("details", { class: "filters", open: filters.some((one) => one.input.value) }, h("summary", {}, "Filter"), h("div", { class: "inline-fields" }, ...filters.map((one) => one.row)), h("p", { class: "note" }, "Texts are compared as they are stored: JSON with K\\u00f6ln is found by K\\u00f6ln, and not by Köln."));
    const form = h(
      "form",
      { class: "browse-form card" },
      h("div", { class: "inline-fields" }, start.row, offset.row, at.row, partition.row, limit.row, columns.row, h("div", { class: "field" }, h("button", { type: "submit", class: "primary" }, "Show"))),
      more,
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.search();
    });
    columns.input.addEventListener("change", () => this.draw());
    return form;
  }

  /** @param {string} name */
  given(name) {
    return this.inputs[name].input.value.trim();
  }

  get columns() {
    return this.given("columns").split(",").map((one) => one.trim()).filter(Boolean);
  }

  request() {
    /** @type {Record<string, string>} */
    const filter = {};
    for (const name of ["key", "value", "header", "header_value", "field", "field_value"]) if (this.given(name)) filter[name] = this.given(name);
    const start = this.given("start");
    /** @type {Record<string, unknown>} */
    const request = { topic: this.topic, start, filter };
    if (start !== "tail") request.limit = Number(this.given("limit"));
    if (start === "offset") request.offset = Number(this.given("offset"));
    if (start === "timestamp") request.timestamp_ms = new Date(this.given("at")).getTime();
    if (this.given("partition")) request.partitions = [Number(this.given("partition"))];
    return request;
  }

  /** Starts the search again with the values of the form. @param {boolean} [opens] whether the message that it names is opened */
  search(opens = false) {
    this.#ended.abort();
    this.#ended = new AbortController();
    this.#messages = [];
    this.#held = [];
    this.#shown = 0;
    this.#isLost = false;
    this.#retryMs = RETRY_MS;
    this.view.stale(null);
    this.draw();
    this.table.hidden = false;
    fill(this.notice);
    this.running(false, false);
    if (!this.form.reportValidity()) return fill(this.told, "A field above is empty, or its value is out of range.");
    this.view.setQuery({ ...Object.fromEntries(FIELDS.map((name) => [name, this.given(name)])), show: null });
    if (this.given("start") === "tail") return this.follow(this.request(), Date.now());
    this.running(true, false);
    this.#scan = new Scan(
      this.request(),
      {
        onMessages: (more) => {
          this.add(more);
          if (opens) this.open(more[0]);
          opens = false;
        },
        onProgress: (progress) => this.tell(progress),
        onEnd: (progress) => {
          this.running(false, false);
          this.tell(progress);
          if (opens) this.open(null);
        },
        onError: (error) => this.fail(error),
      },
      this.#ended.signal,
    );
  }

  /** @param {ApiError} error */
  fail(error) {
    this.running(false, false);
    fill(this.told);
    fill(this.notice, errorState(error, error.status === 403 ? undefined : () => this.search()));
    this.table.hidden = !this.#messages.length;
  }

  // --- the tail

  /** Shows messages as they come. A tail whose connection is lost is opened again. @param {Record<string, unknown>} request @param {number} sinceMs when it began */
  follow(request, sinceMs) {
    let isOpen = false;
    this.running(true, true);
    this.#scan = new Scan(
      request,
      {
        onMessages: (more) => this.add(more),
        onProgress: () => {
          if (!isOpen && this.#isLost) void this.fillGap(request, sinceMs);
          isOpen = true;
          this.tellTail();
        },
        onEnd: () => (this.running(false, true), this.tellTail()),
        onError: (error) => (isOpen || this.#isLost ? void this.resume(request, error, isOpen ? this.newestMs(sinceMs) : sinceMs) : this.fail(error)),
      },
      this.#ended.signal,
    );
  }

  /** From when on messages may be missed. @param {number} sinceMs */
  newestMs(sinceMs) {
    const newest = this.#messages.reduce((most, one) => Math.max(most, one.timestamp_ms), sinceMs);
    return Math.min(newest, Date.now()); // a producer's clock may be ahead
  }

  /** @param {Record<string, unknown>} request @param {ApiError} error @param {number} sinceMs @returns {Promise<void>} */
  async resume(request, error, sinceMs) {
    const { signal } = this.#ended;
    this.#isLost = true;
    this.#scan = null;
    this.release();
    this.pauseButton.hidden = true;
    this.view.stale(error);
    fill(this.told, "The connection is lost. The page opens it again.");
    await pause(this.#retryMs, signal);
    this.#retryMs = Math.min(RETRY_MAX_MS, 2 * this.#retryMs);
    await visible(signal);
    if (signal.aborted) return;
    try {
      await get("me", { signal });
    } catch (trouble) {
      if (signal.aborted) return;
      if (!(trouble instanceof ApiError)) throw trouble;
      return this.resume(request, trouble, sinceMs);
    }
    this.follow(request, sinceMs);
  }

  /** The messages that came while the connection was lost. @param {Record<string, unknown>} request @param {number} sinceMs */
  async fillGap(request, sinceMs) {
    const { signal } = this.#ended;
    this.#isLost = false;
    this.#retryMs = RETRY_MS;
    this.view.stale(null);
    const missed = { ...request, start: "timestamp", timestamp_ms: sinceMs, limit: MOST };
    try {
      const end = await scanned(missed, (more) => this.add(more), signal);
      if (end) this.tellTail();
      if (end && end.reason !== "complete") fill(this.notice, h("p", { class: "why" }, `The connection was lost. Not all messages since ${timeOfDay(sinceMs)} are shown.`));
    } catch (trouble) {
      if (!(trouble instanceof ApiError)) throw trouble;
      fill(this.notice, h("p", { class: "why" }, `The connection was lost. Messages that came meanwhile are not shown: ${trouble.message}`));
    }
  }

  stop() {
    if (!this.#isLost) return this.#scan?.stop();
    this.#ended.abort();
    this.view.stale(null);
    this.running(false, true);
    this.tellTail();
  }

  /** Opens the message that a link names, unless another was found. @param {Message | null} found the first from there on */
  open(found) {
    const [partition, offset] = [this.given("partition"), this.given("offset")].map(Number);
    if (found?.partition === partition && found.offset === offset) return openMessage(this.topic, found);
    const where = `The message at offset ${count(offset)} of partition ${partition}`;
    const next = found ? ["is gone (deleted or compacted); the next one is at ", link(messageLink(this.topic, found), `offset ${count(found.offset)}`), "."] : ["is gone (deleted or compacted), or it is not written yet."];
    fill(this.notice, h("p", { class: "why" }, `${where} `, ...next));
  }

  pause() {
    if (!this.#scan) return;
    this.#scan.pause(!this.#scan.isPaused);
    this.drawPause();
    if (!this.#scan.isPaused) this.release();
  }

  /** Says how many messages wait to be shown. */
  drawPause() {
    const waiting = this.#held.length ? ` (${plural(this.#held.length, "new message")})` : "";
    this.pauseButton.textContent = this.#scan?.isPaused ? `Go on${waiting}` : "Pause";
  }

  /** Shows what came while the tail was paused. */
  release() {
    const held = this.#held;
    this.#held = [];
    if (held.length) this.put(held);
  }

  /** @param {boolean} isRunning @param {boolean} isTail */
  running(isRunning, isTail) {
    this.stopButton.hidden = !isRunning;
    this.pauseButton.hidden = !isRunning || !isTail;
    this.pauseButton.textContent = "Pause";
    this.bar.hidden = !isRunning || isTail;
    if (!isRunning) this.#scan = null;
    this.release();
    if (isRunning) fill(this.told, isTail ? "Waiting for messages…" : "Scanning…");
  }

  /** @param {Progress} progress */
  tell(progress) {
    this.bar.max = progress.total || 1;
    this.bar.value = progress.scanned;
    fill(this.told, `${plural(progress.found, "message")}, ${count(progress.scanned)} of ${count(progress.total)} scanned${this.whyItEnded(progress)}`);
  }

  tellTail() {
    fill(this.told, `${plural(this.#shown, "message")} so far`);
  }

  /** @param {Progress} progress */
  whyItEnded({ reason, scanned, total }) {
    const left = total > scanned ? `; ${count(total - scanned)} were not looked at` : "";
    const ends = /** @type {Record<string, string>} */ ({
      complete: ": all of them",
      limit: `. It ended at ${this.given("limit")} messages, as “At most” says: others may match${left}.`,
      held_bytes: `. It ended early because the messages found are large: others may match${left}.`,
      stopped: `. You stopped it${left}.`,
    });
    return ends[reason ?? ""] ?? "";
  }

  /** @param {Message[]} more */
  add(more) {
    const known = new Set(this.#messages.concat(this.#held).map(rowKey)); // a tail that was opened again finds some twice
    more = more.filter((one) => !known.has(rowKey(one)));
    this.#shown += more.length;
    if (this.#scan?.isPaused) {
      this.#held = [...this.#held, ...more].slice(-KEPT_MESSAGES);
      return this.drawPause();
    }
    this.put(more);
  }

  /** @param {Message[]} more */
  put(more) {
    this.#messages = [...this.#messages, ...more].slice(-KEPT_MESSAGES);
    this.draw();
  }

  draw() {
    const columns = this.columns;
    this.table.columns = columnsOf(this.topic, columns);
    const isOldFirst = ["oldest", "offset", "timestamp"].includes(this.given("start"));
    this.table.descending = this.#messages.length === 0 ? !isOldFirst : this.table.descending;
    this.table.rows = this.#messages;
  }

  download() {
    if (!this.form.reportValidity()) return;
    downloadDialog(this.topic, /** @type {any} */ (this.request()), this.partitions, this.#messages, this.view.signal);
  }
}

/** @param {MessagesPage} page */
function messageTable(page) {
  return dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<Message>>} */ ({
      caption: "Messages",
      noun: "message",
      filterable: false,
      descending: true,
      rowKey,
      className: "stacked",
      tie: (one, other) => one.partition - other.partition || one.offset - other.offset,
      columns: columnsOf(page.topic, []),
      empty: () => emptyState("No messages to show", "Change where to start or the filter, or publish a message."),
    }),
  );
}

/** @param {Message} one */
const rowKey = (one) => `${one.partition} ${one.offset}`;

/** @param {string} topic @param {string[]} fields @returns {import("../elements/data-table.js").Column<Message>[]} */
function columnsOf(topic, fields) {
  return [
    { title: "Time", value: (one) => one.timestamp_ms, cell: (one) => time(one.timestamp_ms), class: "time" },
    { title: "Partition", value: (one) => one.partition, numeric: true },
    { title: "Offset", value: (one) => one.offset, numeric: true, cell: (one) => h("button", { type: "button", class: "link", "aria-label": `Open the message at offset ${one.offset} of partition ${one.partition}`, onclick: () => openMessage(topic, one) }, count(one.offset)) },
    { title: "Key", value: keyText, cell: (one) => keyCell(one), class: "brief" },
    ...fields.map((field) => ({ title: field, value: (/** @type {Message} */ one) => fieldOf(parsedJson(valueText(one)), field), class: "brief" })),
    { title: "Value", value: valueText, cell: (one) => valueCell(one), class: "value", unsorted: true },
  ];
}

/** @param {Message} one */
function keyCell(one) {
  if (!one.key) return one.key === null ? "–" : h("i", {}, "empty");
  return one.key_decoded?.json ? readable(one.key_decoded.json, "text") : readable(one.key, one.key_encoding);
}

/** @param {Message} one */
function valueCell(one) {
  if (!one.value) return h("i", {}, one.value === null ? "no value" : "empty");
  const decoded = one.value_decoded;
  if (decoded?.problem) return [h("i", {}, `not decoded: ${decoded.problem}`)];
  return h("code", {}, decoded?.json ? readable(decoded.json, "text") : readable(one.value, one.value_encoding));
}

/**
 * @param {URLSearchParams} query
 * @param {number} partitions
 * @returns {Record<string, {row: HTMLElement, input: HTMLInputElement | HTMLSelectElement}>}
 */
function makeInputs(query, partitions) {
  const all = /** @type {[string, string][]} */ ([["", "All"], ...Array.from({ length: partitions <= LISTED_PARTITIONS ? partitions : 0 }, (_, at) => [String(at), String(at)])]);
  return {
    start: select("Start", "start", STARTS, query),
    offset: input("Offset", "offset", query, { type: "number", min: 0, value: 0 }),
    at: input("Time", "at", query, { type: "datetime-local", step: 1 }),
    partition: partitions <= LISTED_PARTITIONS ? select("Partition", "partition", all, query) : input("Partition", "partition", query, { type: "number", min: 0, max: partitions - 1, placeholder: "All" }),
    limit: input("At most", "limit", query, { type: "number", min: 1, max: 500, value: 100 }),
    columns: input("Columns from JSON", "columns", query, { placeholder: "id, customer.city" }),
    key: input("Key contains", "key", query),
    value: input("Value contains", "value", query),
    header: input("Header", "header", query, { placeholder: "its name" }),
    header_value: input("Header contains", "header_value", query),
    field: input("JSON field", "field", query, { placeholder: "customer.city" }),
    field_value: input("Field is", "field_value", query),
  };
}

/** @param {string} label @param {string} name @param {URLSearchParams} query @param {Record<string, string | number>} [attributes] */
function input(label, name, query, attributes = {}) {
  const id = uniqueId("browse");
  const { value = "", ...others } = attributes;
  const made = h("input", { id, name, autocomplete: "off", spellcheck: "false", ...others });
  made.value = query.get(name) ?? String(value);
  return { row: h("div", { class: "field" }, h("label", { for: id }, label), made), input: made };
}

/** @param {string} label @param {string} name @param {[string, string][]} options @param {URLSearchParams} query */
function select(label, name, options, query) {
  const id = uniqueId("browse");
  const made = h("select", { id, name }, ...options.map(([value, title]) => h("option", { value }, title)));
  made.value = query.get(name) ?? options[0][0];
  if (made.selectedIndex < 0) made.selectedIndex = 0;
  return { row: h("div", { class: "field" }, h("label", { for: id }, label), made), input: made };
}
