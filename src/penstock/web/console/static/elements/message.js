/** One message in a dialog: key, headers, and its value as JSON (also by its schema), text or bytes. All of it is text, never HTML. */

import { get, path } from "../lib/api.js";
import { h, show as fill } from "../lib/dom.js";
import { bytes, time } from "../lib/format.js";
import { download, hexDump, indented, isPrintable, marked, parsedJson, payloadBytes, readable, valueText } from "../lib/payload.js";
import { openDialog } from "./dialog.js";
import { button, facts } from "./parts.js";
import { toast, toastError } from "./toast.js";

/** @typedef {import("../lib/browse.js").Message} Message */

const FORMATS = ["JSON", "Text", "Hex"];
/** Of a key or a header that is opened. */
const WHOLE = { characters: 10_000, bytes: 1024 };

/** Of a value as text or bytes, before somebody asks for more: a browser lays out megabytes for seconds. */
const SHOWN_BYTES = 64 * 1024;

/** The address of a message. @param {string} topic @param {{partition: number, offset: number}} message */
export function messageLink(topic, { partition, offset }) {
  return `${path`topics/${topic}/messages`}?start=offset&offset=${offset}&partition=${partition}&limit=1&show=message`;
}

/** @param {string} topic @param {Message} message */
export function openMessage(topic, message) {
  const where = `${topic}, partition ${message.partition}, offset ${message.offset}`;
  const body = h("div", { class: "stack" });
  fill(body, ...content(topic, message));
  openDialog(where, () => [body], { wide: true });
  if (message.truncated) void loadWhole(topic, message, body);
}

/** @param {string} topic @param {Message} message */
function content(topic, message) {
  return [
    facts([
      ["Time", time(message.timestamp_ms)],
      ["Key", !message.key ? (message.key === null ? "none" : "empty") : h("code", {}, message.key_decoded?.json ? marked(message.key_decoded.json) : readable(message.key, message.key_encoding, WHOLE))],
      ["Size", !message.value_bytes ? (message.value_bytes === null ? "no value" : "empty") : bytes(message.value_bytes)],
      ...schemaFacts("Schema of the key", message.key_decoded),
      ...schemaFacts("Schema", message.value_decoded),
    ]),
    ...schemaNotes(message),
    headersOf(message),
    valueOf(message),
    h(
      "div",
      { class: "actions" },
      button("Copy a link", () => void copyLink(topic, message)),
      button("Download the value", () => download(`${topic}-${message.partition}-${message.offset}`, /** @type {Uint8Array<ArrayBuffer>} */ (payloadBytes(message.value, message.value_encoding)), "application/octet-stream")),
    ),
  ];
}

/** @param {string} title @param {import("../lib/browse.js").Decoded | null} decoded @returns {[string, string][]} */
function schemaFacts(title, decoded) {
  const types = /** @type {Record<string, string>} */ ({ AVRO: "Avro", PROTOBUF: "Protobuf", JSON: "JSON Schema" });
  return decoded ? [[title, [types[decoded.schema_type ?? ""] ?? decoded.schema_type, decoded.schema_name, `id ${decoded.schema_id}`].filter(Boolean).join(" · ")]] : [];
}

/** Why a key or a value is not shown by its schema. @param {Message} message */
function schemaNotes(message) {
  const { key_decoded: key, value_decoded: value } = message;
  const notes = [];
  if (key?.problem) notes.push(`The key is not decoded: ${key.problem}.`);
  if (value?.problem) notes.push(`The value is not decoded: ${value.problem}.`);
  if (value?.truncated) notes.push("The JSON is long: this is its beginning.");
  const data = payloadBytes(message.value, message.value_encoding);
  if (!value && data.length > 5 && data[0] === 0) notes.push(`The value begins as one of a schema registry does (schema ${new DataView(data.buffer).getUint32(1)}). It is decoded if the node's setting schema_registry.url has the registry's address.`);
  return notes.map((text) => h("p", { class: "note" }, text));
}

/** @param {Message} message */
function headersOf(message) {
  if (!message.headers.length) return h("p", { class: "note" }, "It has no headers.");
  const rows = message.headers.map((one) => h("tr", {}, h("td", {}, h("code", {}, marked(one.name))), h("td", { class: "value" }, one.value === null ? h("i", {}, "no value") : h("code", {}, readable(one.value, one.encoding, WHOLE)))));
  return h("div", { class: "table-frame", tabindex: 0, role: "region", "aria-label": "Headers" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Header"), h("th", { scope: "col" }, "Value"))), h("tbody", {}, ...rows)));
}

/** The value, with a choice of formats. @param {Message} message */
function valueOf(message) {
  const isDecoded = Boolean(message.value_decoded?.json);
  const isJson = isDecoded || (message.value_encoding === "text" && parsedJson(message.value) !== undefined);
  const shown = h("pre", { class: "payload", tabindex: 0, "aria-label": "Value" });
  const more = h("div", { class: "actions" });
  const choices = h("div", { class: "choices", role: "group", "aria-label": "Format" });
  const data = payloadBytes(message.value, message.value_encoding);
  const choose = (/** @type {string} */ format, most = SHOWN_BYTES) => {
    shown.textContent = marked(format === "JSON" ? jsonOf(message) : format === "Hex" ? hexDump(data.subarray(0, most)) : textOf(data.subarray(0, most)));
    const left = format === "JSON" ? 0 : data.length - most;
    fill(more, left > 0 ? button(`Show more (${bytes(left)} are left)`, () => choose(format, 4 * most)) : null);
    fill(choices, ...FORMATS.map((one) => h("button", { type: "button", "aria-pressed": String(one === format), disabled: one === "JSON" && !isJson, onclick: () => choose(one) }, one)));
  };
  choose(isJson ? "JSON" : message.value_encoding === "text" && isPrintable(message.value ?? "") ? "Text" : "Hex");
  return h("div", { class: "stack" }, choices, shown, more);
}

/** @param {Message} message */
function jsonOf(message) {
  const text = valueText(message) ?? "";
  return message.value_decoded?.truncated ? text : indented(text);
}

/** The last character may be cut. @param {Uint8Array} data */
function textOf(data) {
  return new TextDecoder().decode(data, { stream: true });
}

/** A long message was cut: here is all of it. @param {string} topic @param {Message} message @param {HTMLElement} body */
async function loadWhole(topic, message, body) {
  try {
    const found = await get(path`topics/${topic}/partitions/${message.partition}/records`, { query: { offset: message.offset, max_records: 1, encoding: "text" } });
    const whole = found.records.find((/** @type {Message} */ one) => one.offset === message.offset);
    if (whole && body.isConnected) fill(body, ...content(topic, { ...message, ...whole, truncated: false }));
  } catch (trouble) {
    toastError(trouble);
  }
}

/** @param {string} topic @param {Message} message */
async function copyLink(topic, message) {
  const url = new URL(messageLink(topic, message), document.baseURI).href;
  try {
    await navigator.clipboard.writeText(url);
    toast("The link was copied.");
  } catch {
    toast(url); // a page without TLS may not use the clipboard
  }
}
