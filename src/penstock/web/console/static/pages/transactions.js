/** Transactions that are open: since when, by which producer, on which partitions; aborting one. */

import { dataTable } from "../elements/data-table.js";
import { confirmDialog } from "../elements/dialog.js";
import { badge, button, emptyState, pageHead } from "../elements/parts.js";
import { toast } from "../elements/toast.js";
import { get, path, post } from "../lib/api.js";
import { h, show as fill } from "../lib/dom.js";
import { count, duration } from "../lib/format.js";
import { live } from "../lib/live.js";
import { permissions } from "../lib/permissions.js";
import { link } from "../lib/router.js";
import { unansweredNote } from "./subscriptions.js";

const REFRESH_MS = 3_000;
const SHOWN_TOPICS = 3;

/**
 * @typedef {{transactional_id: string, state: string, coordinator: number, producer_id: number, producer_epoch: number,
 *   timeout_ms: number, start_ms: number | null, open_ms: number | null,
 *   topics: {topic: string, partitions: number[]}[]}} Transaction
 */

/** @param {import("../main.js").View} view */
export async function show(view) {
  let state = view.query.get("state") === "any" ? "any" : "open";
  const every = h("input", { type: "checkbox", id: "every" });
  every.checked = state === "any";
  /** Whether the caller may abort, by transactional id. @type {Map<string, boolean>} */
  const mayAbort = new Map();
  const table = transactionTable((one) => (one.state === "Ongoing" && mayAbort.get(one.transactional_id) ? button("Abort", () => abort(one, load), { class: "danger", "aria-label": `Abort ${one.transactional_id}` }) : ""));
  const silent = h("div");
  const load = async () => {
    const found = await get("transactions", { query: { state }, signal: view.signal });
    await askAll(found.transactions, mayAbort, view.signal);
    table.rows = found.transactions;
    fill(silent, unansweredNote(found.unanswered, "transactions"));
  };
  every.addEventListener("change", () => {
    state = every.checked ? "any" : "open";
    view.setQuery({ state: every.checked ? "any" : null });
    void load();
  });
  await live(view, REFRESH_MS, load);
  view.root.append(
    pageHead("Transactions", { note: "Readers of committed messages wait behind a transaction that is open." }),
    silent,
    h("label", { class: "option", for: "every" }, every, " Transactional ids without an open transaction, too"),
    table,
  );
}

/** Asks once for each id whether the caller may abort. @param {Transaction[]} found @param {Map<string, boolean>} known @param {AbortSignal} signal */
async function askAll(found, known, signal) {
  const ids = found.filter((one) => one.state === "Ongoing" && !known.has(one.transactional_id)).map((one) => one.transactional_id);
  if (!ids.length) return;
  const all = await permissions(signal, "transactional_id");
  if (all("write")) for (const id of ids) known.set(id, true);
  else for (const id of ids) known.set(id, (await permissions(signal, "transactional_id", id))("write"));
}

/** @param {(one: Transaction) => import("../lib/dom.js").Child} actions */
function transactionTable(actions) {
  return dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<Transaction>>} */ ({
      caption: "Transactions",
      noun: "transaction",
      sortColumn: 2,
      descending: true,
      rowKey: (one) => one.transactional_id,
      empty: () => emptyState("No transaction is open, or none that you may see", "Producers with a transactional.id, and streams of Spark that write, appear here while they write."),
      columns: [
        { title: "Transactional id", value: (one) => one.transactional_id, class: "name" },
        { title: "State", value: (one) => one.state, cell: (one) => stateBadge(one) },
        { title: "Open for", value: (one) => one.open_ms, cell: (one) => openFor(one), numeric: true },
        { title: "Timeout", value: (one) => one.timeout_ms, cell: (one) => duration(one.timeout_ms), numeric: true },
        { title: "Writes to", value: (one) => one.topics.map((row) => row.topic).join(", "), cell: (one) => placesOf(one), class: "name" },
        { title: "Producer", value: (one) => one.producer_id, cell: (one) => `${one.producer_id} (epoch ${one.producer_epoch})` },
        { title: "Coordinator", value: (one) => one.coordinator, cell: (one) => `node\u00a0${one.coordinator}` },
        { title: "", value: () => "", unsorted: true, cell: actions },
      ],
    }),
  );
}

/** @param {Transaction} one */
function stateBadge(one) {
  const words = /** @type {Record<string, [string, "good" | "bad" | "warn" | "plain"]>} */ ({
    Ongoing: ["open", "good"],
    PrepareCommit: ["committing", "warn"],
    PrepareAbort: ["aborting", "warn"],
  });
  const [word, kind] = words[one.state] ?? [one.state, "plain"];
  return badge(word, kind);
}

/** @param {Transaction} one */
function openFor(one) {
  if (one.open_ms === null) return "–";
  return one.open_ms > one.timeout_ms ? badge(duration(one.open_ms), "bad") : duration(one.open_ms);
}

/** @param {Transaction} one */
function placesOf(one) {
  const shown = one.topics.slice(0, SHOWN_TOPICS).flatMap((row, at) => [at ? ", " : "", link(path`topics/${row.topic}`, row.topic), ` (${row.partitions.join(", ")})`]);
  const more = one.topics.length - SHOWN_TOPICS;
  return one.topics.length ? [...shown, more > 0 ? ` and ${count(more)} more` : ""] : "nothing yet";
}

/** @param {Transaction} one @param {() => Promise<void>} load */
function abort(one, load) {
  confirmDialog(`Abort the transaction of ${one.transactional_id}?`, {
    text: "What it has written is never seen by readers of committed messages, and its producer is fenced: it must start again.",
    action: "Abort the transaction",
    run: async () => {
      await post(path`transactions/${one.transactional_id}/abort`, { start_ms: one.start_ms });
      toast(`The transaction of ${one.transactional_id} was aborted.`);
      await load();
    },
  });
}
