/** The nodes of the cluster that serve this page, too, for a reader whose node does not answer. */

import { ApiError, get } from "./api.js";
import { h } from "./dom.js";

/** @type {{node_id: number, http: string, https: boolean}[]} */
let others = [];

/** Behind a proxy, other addresses would not help: the reader may not reach them. */
const isDirect = new URL(document.baseURI).pathname === "/console/";

/** Asks once, while there is a node to ask. */
export async function rememberNodes() {
  if (!isDirect) return;
  try {
    const { nodes } = await get("cluster/nodes");
    others = nodes.filter((/** @type {any} */ node) => node.http && isReachable(node.http) && node.http !== location.host);
  } catch (trouble) {
    if (!(trouble instanceof ApiError)) throw trouble; // some users may not look at the cluster
  }
}

/** An address at which a node listens may be none that a browser can open. @param {string} http */
function isReachable(http) {
  return !/^(0\.0\.0\.0|\[?::\]?):/.test(http);
}

/** Links to this page at the other nodes, or nothing. */
export function otherNodes() {
  if (!others.length) return null;
  const links = others.flatMap((node, at) => [at ? ", " : "", h("a", { href: addressAt(node.http, node.https), rel: "noreferrer" }, `node ${node.node_id}`)]);
  return h("p", { class: "note" }, "Other nodes serve this page, too: ", ...links, ".");
}

/** @param {string} http @param {boolean} isSecure */
function addressAt(http, isSecure) {
  const url = new URL(location.href);
  url.protocol = isSecure ? "https:" : "http:";
  url.host = http;
  return url.href;
}
