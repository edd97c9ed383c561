/** The dead letters of a queue: why each died; sending one back, edited or as it is, or all. */

import { dataTable } from "../elements/data-table.js";
import { confirmDialog, formDialog, openDialog } from "../elements/dialog.js";
import { messageLink } from "../elements/message.js";
import { button, emptyState, facts } from "../elements/parts.js";
import { toast, toastError } from "../elements/toast.js";
import { ApiError, get, path, post } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { count, place, plural, time } from "../lib/format.js";
import { live } from "../lib/live.js";
import { hexDump, isPrintable, marked, payloadBytes, readable } from "../lib/payload.js";
import { link } from "../lib/router.js";

/** @typedef {import("../main.js").View} View */

const REFRESH_MS = 5_000;
const SHOWN = 200;

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
  body.append(h("div", { class: "actions" }, all), table);
  await live(view, REFRESH_MS, async () => {
    const found = await get(path`queues/${name}/dead-letters`, { query: { max_records: SHOWN, encoding: "text" }, signal: view.signal });
    table.rows = found.dead_letters;
    all.hidden = found.dead_letters.length === 0;
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
  if (done.refused.length) throw new ApiError(207, "refused", done.refused[0].error.message);
  toast(`${plural(done.sent_back.length, "message")} went back to ${done.sent_back[0].topic}.`);
  view.reload();
}

/** @param {View} view @param {string} name @param {any} letter */
function edit(view, name, letter) {
  formDialog("Edit and send back", {
    wide: true,
    fields: [{ name: "value", label: "Value", type: "textarea", rows: 12, value: letter.value ?? "", help: letter.value_encoding === "base64" ? "The value is not text: this is its base64." : null }],
    submitLabel: "Send back",
    submit: ({ value }) => sendBack(view, name, [{ ...placeOf(letter), value, encoding: letter.value_encoding === "base64" ? "base64" : "text" }]),
  });
}

/** @param {View} view @param {string} name */
function sendAll(view, name) {
  confirmDialog("Send all dead letters back?", {
    text: "They are published to the topics that they came from, to be tried again: up to a thousand at a time.",
    action: "Send all back",
    run: async () => {
      const done = await post(path`queues/${name}/dead-letters/send-back`, { all: true });
      const refused = done.refused.length ? `; ${count(done.refused.length)} were refused: ${done.refused[0].error.message}` : "";
      toast(`${plural(done.sent_back.length, "message")} went back${refused}${done.more ? "; there are more" : ""}.`, refused ? "bad" : "good");
      view.reload();
    },
  });
}
