/** Numbers, sizes and times as people read them. */

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

/** A rate: one decimal below 100. @param {number | null | undefined} value */
export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value < 100 ? short.format(value) : whole.format(value);
}

/** At most four characters and a letter: 12.3k. @param {number} value */
export function compact(value) {
  for (const [unit, letter] of /** @type {[number, string][]} */ ([[1e9, "G"], [1e6, "M"], [1e3, "k"]])) {
    if (value >= unit) return `${short.format(value / unit)}${letter}`;
  }
  return short.format(value);
}

/** @param {number | null | undefined} value */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1000) return `${whole.format(value)} B`;
  const units = ["KB", "MB", "GB", "TB", "PB"];
  let at = 0;
  let left = value / 1000;
  while (left >= 1000 && at < units.length - 1) {
    left /= 1000;
    at += 1;
  }
  return `${short.format(left)} ${units[at]}`;
}

/** @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const seconds = Math.round(Math.max(0, ms) / 1000);
  if (seconds < 1) return "now";
  const steps = /** @type {[number, string][]} */ ([[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]);
  const at = steps.findIndex(([unit]) => seconds >= unit);
  const [unit, word] = steps[at];
  const first = Math.floor(seconds / unit);
  const next = steps[at + 1];
  const second = next ? Math.floor((seconds % unit) / next[0]) : 0;
  return `${first} ${word}${second ? ` ${second} ${next[1]}` : ""}`;
}

/** @param {number | null | undefined} ms */
export function ago(ms) {
  const shown = duration(ms === null || ms === undefined ? ms : Date.now() - ms);
  return shown === "now" || shown === "–" ? shown : `${shown} ago`;
}

/** A moment, sortable as text, in the reader's time zone. @param {number | null | undefined} ms */
export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return String(ms);
  const two = (/** @type {number} */ part) => String(part).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** The time of day. @param {number} ms */
export function timeOfDay(ms) {
  return clock.format(new Date(ms));
}

/** One thing or several: plural(2, "partition"). @param {number} number @param {string} word @param {string} [many] */
export function plural(number, word, many = `${word}s`) {
  return `${count(number)} ${number === 1 ? word : many}`;
}

/** Where a message is, as Kafka's tools write it. @param {{topic: string, partition: number, offset: number}} message */
export function place({ topic, partition, offset }) {
  return `${topic}-${partition}@${offset}`;
}
