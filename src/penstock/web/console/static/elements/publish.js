/** Publishing one message, or one for each line. */

import { ApiError, path, post } from "../lib/api.js";
import { plural } from "../lib/format.js";
import { parsedJson } from "../lib/payload.js";
import { formDialog } from "./dialog.js";
import { toast } from "./toast.js";

/**
 * @param {string} topic
 * @param {number} partitions
 * @param {() => void} done
 * @param {{value?: string, key?: string, headers?: string}} [first] what the form begins with
 */
export function publishDialog(topic, partitions, done, first = {}) {
  formDialog(`Publish to ${topic}`, {
    wide: true,
    fields: [
      { name: "value", label: "Value", type: "textarea", rows: 6, value: first.value ?? "", mayBeEmpty: true },
      { name: "encoding", label: "Format", type: "select", options: [["json", "JSON"], ["text", "Text"], ["base64", "Bytes (base64)"], ["none", "No value"]], help: "No value: a deletion in a compacted topic." },
      { name: "many", label: "One message for each line", type: "checkbox", help: "All with the same key and headers." },
      { name: "key", label: "Key", value: first.key ?? "" },
      { name: "headers", label: "Headers", type: "textarea", rows: 2, value: first.headers ?? "", placeholder: "name: value", help: "One in each line." },
      { name: "partition", label: "Partition", type: "number", min: 0, max: partitions - 1, help: "Left out: by the key." },
      { name: "delay", label: "Delay (s)", type: "number", min: 0, step: "any", help: "Queues deliver it after this time." },
      { name: "ttl", label: "TTL (s)", type: "number", min: 0, step: "any", help: "Not delivered after this time." },
      { name: "message_id", label: "Message id", help: "Stored once, if the topic deduplicates: for one message only." },
    ],
    submitLabel: "Publish",
    submit: async (values) => {
      const records = recordsOf(values);
      const encoding = values.encoding === "base64" ? "base64" : "text";
      const answer = await post(path`topics/${topic}/records`, { encoding, records });
      const refused = answer.records.filter((/** @type {any} */ one) => one.error);
      if (refused.length) throw new ApiError(207, "refused", `${refused.length} of ${records.length} messages were not stored: ${refused[0].error.message}`);
      const [one] = answer.records;
      toast(records.length === 1 ? `Stored in partition ${one.partition} at offset ${one.offset}.` : `${plural(records.length, "message")} were stored.`);
      done();
    },
  });
}

/** @param {Record<string, any>} values */
function recordsOf(values) {
  if (values.many && values.message_id) throw invalid("message_id", "Messages of several lines would have the same id, and all but the first would count as duplicates: leave it out.");
  const headers = headersOf(values.headers);
  const texts = values.many ? values.value.split("\n").filter((/** @type {string} */ line) => line.trim()) : [values.value];
  return texts.map((/** @type {string} */ text, /** @type {number} */ at) => {
    if (values.encoding === "json" && parsedJson(text) === undefined) throw invalid("value", texts.length > 1 ? `Line ${at + 1} is not JSON.` : "This is not JSON.");
    return {
      value: values.encoding === "none" ? null : text,
      key: values.key || null,
      headers,
      partition: values.partition,
      delay_ms: values.delay === null ? null : Math.round(values.delay * 1000),
      ttl_ms: values.ttl === null ? null : Math.round(values.ttl * 1000),
      message_id: values.message_id || null,
    };
  });
}

/** Headers as people write them, one in each line. @param {string} text @returns {[string, string][]} */
export function headersOf(text) {
  return text.split("\n").filter((line) => line.trim()).map((line) => {
    const [name, ...rest] = line.split(":");
    if (!name.trim() || !rest.length) throw invalid("headers", `“${line.trim()}” is not a header: write name: value.`);
    return [name.trim(), rest.join(":").trim()];
  });
}

/** @param {string} field @param {string} message */
function invalid(field, message) {
  return new ApiError(400, "invalid_field", message, field);
}
