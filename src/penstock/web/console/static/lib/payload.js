/** Keys and values of messages, as people read them. */

/** @param {string} text base64 @returns {Uint8Array} */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** The bytes that a text of the API stands for. @param {string | null} text @param {string} encoding @returns {Uint8Array} */
export function payloadBytes(text, encoding) {
  if (text === null) return new Uint8Array();
  return encoding === "base64" ? fromBase64(text) : new TextEncoder().encode(text);
}

/** The key as people read it: by its schema, if it has one. @param {import("./browse.js").Message} message */
export const keyText = (message) => message.key_decoded?.json ?? message.key;

/** The value as people read it: by its schema, if it has one. @param {import("./browse.js").Message} message */
export const valueText = (message) => message.value_decoded?.json ?? message.value;

/**
 * Numbers that a browser would round are their digits, as a text.
 *
 * @param {string | null} text
 * @returns {any} undefined if it is not JSON
 */
export function parsedJson(text) {
  const exact = (/** @type {string} */ _, /** @type {any} */ value, /** @type {{source?: string}} */ context) =>
    typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) ? (context?.source ?? value) : value;
  try {
    return text === null ? undefined : JSON.parse(text, /** @type {any} */ (exact));
  } catch {
    return undefined;
  }
}

/** Deeper JSON, or more text than this with its line breaks, is not indented: people do not read it, and the tab would stall. */
const INDENTED_DEPTH = 100;
const INDENTED_CHARACTERS = 4_000_000;

/**
 * JSON with line breaks. The text is indented and not parsed and printed again: that would change long numbers.
 *
 * @param {string} text valid JSON
 * @returns {string} the text itself if it is too deep or too long
 */
export function indented(text) {
  const parts = [];
  let depth = 0;
  let size = 0;
  let last = "";
  for (const [token] of text.matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    const isClosing = token === "}" || token === "]";
    const isAfterOpening = last === "{" || last === "[";
    if (isClosing) depth -= 1;
    const breaks = isClosing ? !isAfterOpening : isAfterOpening || last === ",";
    const part = (breaks ? `\n${"  ".repeat(depth)}` : "") + (token === ":" ? ": " : token);
    if (token === "{" || token === "[") depth += 1;
    size += part.length;
    if (depth > INDENTED_DEPTH || size > INDENTED_CHARACTERS) return text;
    parts.push(part);
    last = token;
  }
  return parts.join("");
}

/** Whether a text is for people: bytes may be UTF-8 by chance. @param {string} text */
export const isPrintable = (text) => !/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/.test(text);

/** Characters that cannot be seen, and may make a text look like another: control characters, directions, zero widths. */
const INVISIBLE = /[\u0080-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** A text with marks in place of characters that cannot be seen. @param {string} text */
export const marked = (text) => text.replace(INVISIBLE, (character) => `⟨U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

/**
 * A key, a header or a value in one line: its text, or the first bytes of what is none as hexadecimal digits.
 *
 * @param {string | null} text
 * @param {string} encoding
 * @param {{characters?: number, bytes?: number}} [most]
 */
export function readable(text, encoding, { characters = 200, bytes = 32 } = {}) {
  if (text === null) return "no value";
  if (encoding !== "text" || !isPrintable(text)) return shortHex(payloadBytes(text, encoding), bytes);
  return marked(text.length > characters ? `${text.slice(0, characters)}…` : text);
}

/** The first bytes as hexadecimal digits. @param {Uint8Array} data @param {number} most */
export function shortHex(data, most) {
  const digits = [...data.subarray(0, most)].map((byte) => byte.toString(16).padStart(2, "0"));
  return digits.join(" ") + (data.length > most ? " …" : "");
}

/** Sixteen bytes a line, as hexdump prints them. @param {Uint8Array} data */
export function hexDump(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

/** What is at a path of a JSON value: customer.tags.0. @param {any} value @param {string} path */
export function fieldOf(value, path) {
  const found = path.split(".").reduce((part, name) => (part !== null && typeof part === "object" && Object.hasOwn(part, name) ? part[name] : undefined), value);
  if (found === undefined) return null;
  return typeof found === "object" ? JSON.stringify(found) : found;
}

/** Has the browser save a file. @param {string} name @param {BlobPart} content @param {string} type */
export function download(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
