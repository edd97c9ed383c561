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

/** @param {string | null} text @returns {any} undefined if it is not JSON */
export function parsedJson(text) {
  try {
    return text === null ? undefined : JSON.parse(text);
  } catch {
    return undefined;
  }
}

/**
 * JSON with line breaks. The text is indented and not parsed and printed again: that would change long numbers.
 *
 * @param {string} text valid JSON
 */
export function indented(text) {
  let made = "";
  let depth = 0;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    const isOpening = token === "{" || token === "[";
    if (token === "}" || token === "]") {
      depth -= 1;
      made = /[{[]$/.test(made.trimEnd()) ? made.trimEnd() : `${made}\n${"  ".repeat(depth)}`;
    }
    made += token === ":" ? ": " : token;
    if (isOpening) depth += 1;
    if (isOpening || token === ",") made += `\n${"  ".repeat(depth)}`;
  }
  return made;
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
