/** All cliques: workers in a ring, where every key has one owner. */

import { dataTable } from "../elements/data-table.js";
import { badge, emptyState, pageHead } from "../elements/parts.js";
import { get, path } from "../lib/api.js";
import { ago, count } from "../lib/format.js";
import { live } from "../lib/live.js";
import { link } from "../lib/router.js";

const REFRESH_MS = 3_000;

/** @typedef {{clique: string, epoch: number, members: number, handovers: number, changed_ms: number}} Clique */

/** @param {import("../main.js").View} view */
export async function show(view) {
  const table = dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<Clique>>} */ ({
      caption: "Cliques",
      noun: "clique",
      rowKey: (one) => one.clique,
      empty: () => emptyState("There are no cliques, or none that you may see", "In a clique, every key of a stream has one worker that owns it. It appears here when its first worker starts: see Clique in the Python client."),
      columns: [
        { title: "Name", value: (one) => one.clique, cell: (one) => link(path`cliques/${one.clique}`, one.clique), class: "name" },
        { title: "Workers", value: (one) => one.members, cell: (one) => (one.members ? count(one.members) : badge("none", "warn")), numeric: true },
        { title: "Slots being handed over", value: (one) => one.handovers, cell: (one) => count(one.handovers), numeric: true },
        { title: "Last change", value: (one) => -one.changed_ms, cell: (one) => ago(one.changed_ms) },
      ],
    }),
  );
  await live(view, REFRESH_MS, async () => {
    table.rows = (await get("cliques", { signal: view.signal })).cliques;
  });
  view.root.append(pageHead("Cliques"), table);
}
