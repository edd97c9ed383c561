/** The dead letters of a queue: why each died; sending one back, edited or as it is, or all. */

import { dataTable } from "../elements/data-table.js";
import { confirmDialog, formDialog, openDialog } from "../elements/dialog.js";
import { messageLink } from "../elements/message.js";
import { button, emptyState, facts } from "../elements/parts.js";
import { headersOf } from "../elements/publish.js";
import { toast, toastError } from "../elements/toast.js";
import { ApiError, get, path, post } from "../lib/api.js";
import { h, show as fill } from "../lib/dom.js";
import { count, place, plural, time } from "../lib/format.js";
import { live } from "../lib/live.js";
import { hexDump, isPrintable, marked, payloadBytes, readable } from "../lib/payload.js";
import { link } from "../lib/router.js";

/** @typedef {import("../main.js").View} View */
/** @typedef {{topic: string, partition: number, offset: number}} Place */

const REFRESH_MS = 5_000;
const SHOWN = 200;
/** Sent back with one request, so that the page can tell how far it is, and stop. */
const AT_ONCE = 50;

/** @param {View} view @param {string} name @param {HTMLElement} body */
export async function showDeadLetters(view, name, body) {
  const all = button("Send all back", () => sendAll(view, name));
  const table = dataTable({
    caption: "Dead letters",
    noun: "dead letter",
    rowKey: (one) => `${one.topic} ${one.partition} ${one.offset}`,
    descending: true,
    empty: () => emptyState("There are no dead letters", "Messages come here when a worker rejects them, or after the last try."),
    columns: [
      { title: "Died", value: (one) => one.died_at_ms, cell: (one) => time(one.died_at_ms), class: "time" },
      { title: "Reason", value: (one) => [one.reason, one.error_text ?? one.error_type].filter(Boolean).join(": "), class: "short" },
      { title: "Tries", value: (one) => one.deliveries, numeric: true },
      { title: "From", value: (one) => place(originOf(one)), cell: (one) => link(messageLink(one.from_topic, originOf(one)), place(originOf(one))), class: "short" },
      { title: "Value", value: (one) => one.value, cell: (one) => h("code", {}, readable(one.value, one.value_encoding)), class: "value" },
      { title: "", value: () => "", unsorted: true, cell: (one) => actionsOf(view, name, one), class: "time" },
    ],
  });
  const cut = h("p", { class: "note" });
  body.append(h("div", { class: "actions" }, all), cut, table);
  await live(view, REFRESH_MS, async () => {
    const found = await get(path`queues/${name}/dead-letters`, { query: { max_records: SHOWN, encoding: "text" }, signal: view.signal });
    table.rows = found.dead_letters;
    all.hidden = found.dead_letters.length === 0 && !found.next;
    cut.hidden = !found.next;
    fill(cut, `The first ${plural(found.dead_letters.length, "dead letter")}: there are more behind them. Send all back sends them, too.`);
  });
}

/** @param {View} view @param {string} name @param {any} letter */
function actionsOf(view, name, letter) {
  const about = `the dead letter at offset ${letter.offset}`;
  return [
    button("Open", () => openLetter(view, name, letter), { "aria-label": `Open ${about}` }),
    " ",
    button("Send back", () => void sendBack(view, name, [placeOf(letter)]).catch(toastError), { "aria-label": `Send back ${about}` }),
  ];
}

/** @param {any} letter */
function placeOf({ topic, partition, offset }) {
  return { topic, partition, offset };
}

/** Where it came from. @param {any} letter */
function originOf(letter) {
  return { topic: letter.from_topic, partition: letter.from_partition, offset: letter.from_offset };
}

/** @param {View} view @param {string} name @param {any} letter */
function openLetter(view, name, letter) {
  openDialog(
    `Dead letter ${place(letter)}`,
    (close) => [
      facts([
        ["Reason", letter.reason ?? "–"],
        ["Error", [letter.error_type, letter.error_text].filter(Boolean).join(": ") || "–"],
        ["Worker", letter.worker ?? "–"],
        ["Tries", count(letter.deliveries)],
        ["First failure", time(letter.first_failure_ms)],
        ["Died", time(letter.died_at_ms)],
        ["From", place(originOf(letter))],
        ["Key", letter.key === null ? "none" : h("code", {}, readable(letter.key, letter.key_encoding))],
      ]),
      h("pre", { class: "payload", tabindex: 0, "aria-label": "Value" }, valueOf(letter)),
      h("div", { class: "actions" }, button("Edit and send back", () => (close(), edit(view, name, letter)))),
    ],
    { wide: true },
  );
}

/** Its text, or its bytes. @param {any} letter */
function valueOf({ value, value_encoding }) {
  if (value === null) return "";
  return value_encoding === "text" && isPrintable(value) ? marked(value) : hexDump(payloadBytes(value, value_encoding));
}

/** @param {View} view @param {string} name @param {object[]} letters */
async function sendBack(view, name, letters) {
  const done = await post(path`queues/${name}/dead-letters/send-back`, { letters });
  if (done.refused.length) throw new ApiError(207, "refused", done.refused[0].error.message, done.refused[0].error.field);
  toast(`${plural(done.sent_back.length, "message")} went back to ${done.sent_back[0].topic}.`);
  view.reload();
}

// --- editing

/** The broker's own headers, which a message loses when it goes back. */
const MARKS = ["penstock-dead-", "__dlq.errors."];

/** @param {View} view @param {string} name @param {any} letter */
function edit(view, name, letter) {
  const own = letter.headers.filter((/** @type {any} */ one) => !MARKS.some((mark) => one.name.startsWith(mark)));
  const [lines, others] = [own.filter(isLine), own.filter((/** @type {any} */ one) => !isLine(one))];
  const headers = lines.map((/** @type {any} */ one) => `${one.name}: ${one.value}`).join("\n");
  const base64 = (/** @type {string} */ encoding) => (encoding === "base64" ? " This is not text: it is shown in base64." : "");
  formDialog("Edit and send back", {
    wide: true,
    fields: [
      { name: "value", label: "Value", type: "textarea", rows: 12, value: letter.value ?? "", mayBeEmpty: true, help: base64(letter.value_encoding) || null },
      { name: "key", label: "Key", value: letter.key ?? "", help: `Empty: no key. A new key may lead to another partition.${base64(letter.key_encoding)}` },
      { name: "headers", label: "Headers", type: "textarea", rows: 3, value: headers, placeholder: "name: value", help: `One in each line.${others.length ? ` Not text, so they stay as they are: ${others.map((/** @type {any} */ one) => one.name).join(", ")}.` : ""}` },
    ],
    submitLabel: "Send back",
    submit: (values) => {
      /** @type {Record<string, unknown>} */
      const changes = {};
      if (values.value !== lineBreaks(letter.value ?? "")) Object.assign(changes, { value: values.value, encoding: letter.value_encoding === "base64" ? "base64" : "text" });
      if (values.key !== (letter.key ?? "")) Object.assign(changes, { key: values.key || null, key_encoding: letter.key_encoding });
      if (values.headers !== headers) changes.headers = [...headersOf(values.headers).map(([one, value]) => ({ name: one, value })), ...others];
      return sendBack(view, name, [{ ...placeOf(letter), ...changes }]);
    },
  });
}

/** Whether a header can be written as "name: value". @param {any} header */
function isLine({ name, value, encoding }) {
  return encoding === "text" && value !== null && isPrintable(value) && !/[\n\r]/.test(name + value) && !name.includes(":") && name === name.trim() && value === value.trim();
}

/** As a form has them. @param {string} text */
function lineBreaks(text) {
  return text.replace(/\r\n?/g, "\n");
}

// --- all of them

/** @param {View} view @param {string} name */
function sendAll(view, name) {
  confirmDialog("Send all dead letters back?", {
    text: "They are published to the topics that they came from, to be tried again.",
    action: "Send all back",
    run: async () => {
      const { dead_letters: known } = await get(path`queues/${name}`, { signal: view.signal });
      void sendAllWithProgress(view, name, known);
    },
  });
}

/**
 * Where to go on: before the ends that a topic had when the first letter of it was asked for. Messages that fail again
 * while this runs are new dead letters behind these ends, and would be sent back again and again.
 * @param {Place} next @param {Map<string, number[]>} ends of the partitions of topics
 */
async function beforeEnds({ topic, partition, offset }, ends) {
  const known = ends.get(topic) ?? (await endsOf(topic));
  ends.set(topic, known);
  while (partition < known.length && offset >= known[partition]) [partition, offset] = [partition + 1, 0];
  return { topic, partition, offset }; // behind the last partition: the next topic comes
}

/** @param {string} topic @returns {Promise<number[]>} */
async function endsOf(topic) {
  const { partitions } = await get(path`topics/${topic}`);
  return partitions.map((/** @type {{latest_offset: number | null}} */ one) => one.latest_offset ?? 0);
}

/** In small steps, so that it can be stopped. @param {View} view @param {string} name @param {number | null} known how many there are, about */
async function sendAllWithProgress(view, name, known) {
  let [sent, refused, isStopped, why] = [0, 0, false, ""];
  const bar = h("progress", { max: known || 1, "aria-label": "How many were sent back" });
  const told = h("p", { role: "status" });
  const dialog = openDialog("Sending dead letters back", (close) => [told, bar, h("div", { class: "actions" }, button("Stop", close, { class: "danger" }))]);
  dialog.addEventListener("close", () => (isStopped = true), { once: true });
  /** @type {Place | null} */
  let start = null;
  const ends = /** @type {Map<string, number[]>} */ (new Map());
  try {
    do {
      told.textContent = `${count(sent)} of ${known === null ? "an unknown number of" : `about ${count(known)}`} messages sent back${refused ? `, ${count(refused)} refused` : ""}.`;
      bar.value = sent + refused;
      const done = /** @type {any} */ (await post(path`queues/${name}/dead-letters/send-back`, { all: true, start, max_records: AT_ONCE }));
      sent += done.sent_back.length;
      refused += done.refused.length;
      why ||= done.refused[0]?.error.message ?? "";
      start = done.next && (await beforeEnds(done.next, ends));
    } while (start && !isStopped);
    toast(`${plural(sent, "message")} went back${refused ? `; ${count(refused)} were refused: ${why}` : ""}${start ? "; stopped, there are more" : ""}.`, refused ? "bad" : "good");
  } catch (trouble) {
    toastError(trouble);
  }
  dialog.close();
  if (!view.signal.aborted) view.reload();
}
