/**
 * Messages as a file: one JSON object in each line, with whole keys, values and headers. A download that is not complete
 * says so on the page, and in a last line of the file.
 */

import { scanned } from "../lib/browse.js";
import { h } from "../lib/dom.js";
import { bytes, count, plural } from "../lib/format.js";
import { download } from "../lib/payload.js";
import { formDialog, openDialog } from "./dialog.js";
import { button } from "./parts.js";
import { toast, toastError } from "./toast.js";

/** @typedef {import("../lib/browse.js").Message} Message */

/** The file is in the browser's memory until it is saved. */
const MOST_MESSAGES = 100_000;
const MOST_CHARACTERS = 200_000_000;
/** The most that one scan finds. */
const PAGE = 500;

/**
 * @param {string} topic
 * @param {{start: string, offset?: number, timestamp_ms?: number, partitions?: number[], filter: object}} request as the page asks for messages
 * @param {number} partitions
 * @param {Message[]} shown
 * @param {AbortSignal} signal ends with the page
 */
export function downloadDialog(topic, request, partitions, shown, signal) {
  const from = request.start === "offset" ? `offset ${count(request.offset)}` : request.start === "timestamp" ? "the time above" : "the oldest";
  formDialog("Download messages", {
    fields: [
      {
        name: "which",
        label: "Messages",
        type: "select",
        required: true,
        options: [["shown", `The ${plural(shown.length, "message")} that the page shows`], ...(request.start === "tail" ? [] : [/** @type {[string, string]} */ (["all", `All that the form selects, from ${from} on`])])],
        help: `Whole messages, one JSON object in each line. At most ${count(MOST_MESSAGES)} messages or ${bytes(MOST_CHARACTERS)}.`,
      },
    ],
    submitLabel: "Download",
    submit: async ({ which }) => {
      const file = new MessageFile(topic);
      void file.save(which === "all" ? allOf(request, partitions, file) : shownOf(shown, file), signal);
    },
  });
}

class MessageFile {
  /** @type {string[]} */
  #lines = [];
  #characters = 0;
  #ended = new AbortController();
  /** Why it is not complete. */
  why = "";

  /** @param {string} topic */
  constructor(topic) {
    this.topic = topic;
    this.told = h("p", { role: "status" }, "Reading…");
    this.bar = h("progress", { "aria-label": "How much was read" });
  }

  get signal() {
    return this.#ended.signal;
  }

  /** @param {Message} message */
  add(message) {
    if (this.why) return;
    if (this.#lines.length >= MOST_MESSAGES) return this.end(`it has ${count(MOST_MESSAGES)} messages, the most of one download`);
    if (this.#characters >= MOST_CHARACTERS) return this.end(`it has ${bytes(MOST_CHARACTERS)}, the most of one download`);
    const line = JSON.stringify({ topic: this.topic, ...message });
    this.#lines.push(line);
    this.#characters += line.length;
  }

  /** @param {string} why */
  end(why) {
    this.why ||= why;
    this.#ended.abort();
  }

  /** @param {string} where @param {number} share of all that is read */
  tell(where, share) {
    this.told.textContent = `${plural(this.#lines.length, "message")}, ${bytes(this.#characters)}: ${where}.`;
    this.bar.value = share;
  }

  /** Reads, with a button that stops it, and saves. @param {(signal: AbortSignal) => Promise<void>} read @param {AbortSignal} signal */
  async save(read, signal) {
    const dialog = openDialog("Downloading messages", (close) => [this.told, this.bar, h("div", { class: "actions" }, button("Stop and save", close, { class: "danger" }))]);
    dialog.addEventListener("close", () => this.end("it was stopped"), { once: true });
    try {
      await read(this.signal);
    } catch (trouble) {
      this.end(trouble instanceof Error ? trouble.message : String(trouble));
      toastError(trouble);
    }
    const why = this.why;
    dialog.close();
    if (signal.aborted) return;
    const last = why ? [JSON.stringify({ incomplete_download: { topic: this.topic, messages: this.#lines.length, reason: why } })] : [];
    download(`${this.topic}.jsonl`, [...this.#lines, ...last].join("\n") + "\n", "application/x-ndjson");
    toast(`${plural(this.#lines.length, "message")} downloaded. ${why ? `There may be more: ${why}. The last line of the file says so, too.` : "These are all."}`, why ? "bad" : "good");
  }
}

/** The messages of the page; those that it shows cut are read again. @param {Message[]} shown @param {MessageFile} file */
function shownOf(shown, file) {
  return async (/** @type {AbortSignal} */ signal) => {
    for (const [at, one] of shown.entries()) {
      file.tell(`${count(at)} of ${count(shown.length)} read`, at / shown.length);
      if (signal.aborted) return;
      if (!one.truncated && !one.key_decoded?.truncated && !one.value_decoded?.truncated) file.add(one);
      else await wholeOf(one, file, signal);
    }
  };
}

/** @param {Message} cut @param {MessageFile} file @param {AbortSignal} signal */
async function wholeOf(cut, file, signal) {
  const found = /** @type {Message[]} */ ([]);
  await scanned({ topic: file.topic, start: "offset", offset: cut.offset, partitions: [cut.partition], limit: 1, whole: true }, (more) => found.push(...more), signal);
  file.add(found.find((one) => one.offset === cut.offset) ?? cut); // it may have been deleted: it stays marked as cut
}

/** All messages of the filter, partition by partition, in pages. @param {{start: string, partitions?: number[]}} request @param {number} partitions @param {MessageFile} file */
function allOf(request, partitions, file) {
  const { partitions: chosen = Array.from({ length: partitions }, (_, at) => at), start, ...others } = request;
  return async (/** @type {AbortSignal} */ signal) => {
    for (const [at, partition] of chosen.entries()) {
      /** @type {Record<string, unknown>} */
      let place = { start: start === "newest" ? "oldest" : start };
      let reason = /** @type {string | undefined} */ ("");
      while (reason !== "complete" && !signal.aborted) {
        let last = -1;
        const page = { ...others, ...place, partitions: [partition], limit: PAGE, whole: true };
        const end = await scanned(page, (more) => {
          more.forEach((one) => file.add(one));
          last = more[more.length - 1].offset;
          file.tell(`partition ${partition}, ${count(at + 1)} of ${count(chosen.length)}`, at / chosen.length);
        }, signal);
        reason = end?.reason;
        place = { start: "offset", offset: last + 1 };
      }
    }
  };
}
