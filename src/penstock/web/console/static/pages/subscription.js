/** One subscription: where it is on each partition. */

import { dataTable } from "../elements/data-table.js";
import { confirmDialog } from "../elements/dialog.js";
import { button, pageHead, tile } from "../elements/parts.js";
import { toast } from "../elements/toast.js";
import { get, path, remove } from "../lib/api.js";
import { h, show as fill } from "../lib/dom.js";
import { ago, count, duration, plural } from "../lib/format.js";
import { live } from "../lib/live.js";
import { permissions } from "../lib/permissions.js";
import { link, navigate } from "../lib/router.js";
import { attachment } from "./subscriptions.js";

const REFRESH_MS = 3_000;

/**
 * @typedef {{topic: string, partition: number, offset: number, done: {first: number, last: number}[], unacked: number,
 *   latest_offset: number | null, lag: number | null}} Place
 */

/** @param {import("../main.js").View} view */
export async function show(view) {
  const name = view.params.subscription;
  const tiles = h("div", { class: "tiles" });
  const table = placeTable();
  let isAttached = false;
  await live(view, REFRESH_MS, async () => {
    const found = await get(path`subscriptions/${name}`, { signal: view.signal });
    isAttached = found.attached;
    table.rows = found.positions;
    fill(
      tiles,
      tile("Subscriber", attachment(found), ago(found.since_ms)),
      tile("Lag", count(found.lag), "messages that are not acked"),
      tile("Pushed, not acked", count(found.unacked), found.deferred ? `${plural(found.deferred, "message")} not due yet` : null),
      tile("Node", count(found.coordinator), "keeps it and pushes"),
      tile("Forgotten", found.ttl_left_ms === null ? "no" : `in ${duration(found.ttl_left_ms)}`, `after ${duration(found.ttl_ms)} without a subscriber`),
    );
  });
  const may = await permissions(view.signal, "group", name);
  const actions = may("delete") ? [button("Delete", () => forget(name, isAttached), { class: "danger" })] : [];
  view.root.append(pageHead(name, { trail: [link("subscriptions", "Subscriptions")], actions }), tiles, table);
}

function placeTable() {
  return dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<Place>>} */ ({
      caption: "Positions",
      noun: "partition",
      rowKey: (place) => `${place.topic}/${place.partition}`,
      columns: [
        { title: "Topic", value: (place) => place.topic, cell: (place) => link(path`topics/${place.topic}`, place.topic), class: "name" },
        { title: "Partition", value: (place) => place.partition, numeric: true },
        { title: "All acked before", value: (place) => place.offset, cell: (place) => count(place.offset), numeric: true },
        { title: "Acked beyond", value: (place) => place.done.reduce((sum, range) => sum + range.last + 1 - range.first, 0), numeric: true },
        { title: "Pushed, not acked", value: (place) => place.unacked, cell: (place) => count(place.unacked), numeric: true },
        { title: "Next offset", value: (place) => place.latest_offset, cell: (place) => count(place.latest_offset), numeric: true },
        { title: "Lag", value: (place) => place.lag, cell: (place) => count(place.lag), numeric: true },
      ],
    }),
  );
}

/** @param {string} name @param {boolean} isAttached */
function forget(name, isAttached) {
  confirmDialog(`Delete ${name}?`, {
    text: `${isAttached ? "A subscriber is attached: its connection is closed. " : ""}The subscription forgets how far it is. The messages stay.`,
    action: "Delete the subscription",
    run: async () => {
      await remove(path`subscriptions/${name}`, { query: { force: isAttached } });
      toast(`Subscription ${name} was deleted.`);
      navigate("subscriptions");
    },
  });
}
