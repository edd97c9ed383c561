/**
 * All pages: an address, a title, and the module that shows it. To add a page, write `pages/NAME.js` with a function
 * `show(view)`, and add a row here; a row in `navigation` puts it in the menu.
 *
 * @typedef {{show: (view: import("./main.js").View) => Promise<void>}} PageModule
 * @typedef {{path: string, title: (params: Record<string, string>) => string, load: () => Promise<PageModule>}} Page
 */

/** @type {Page[]} */
const pages = [
  { path: "", title: () => "Overview", load: () => import("./pages/overview.js") },
  { path: "topics", title: () => "Topics", load: () => import("./pages/topics.js") },
  { path: "topics/:topic", title: ({ topic }) => topic, load: () => import("./pages/topic.js") },
  { path: "topics/:topic/messages", title: ({ topic }) => `Messages of ${topic}`, load: () => import("./pages/messages.js") },
  { path: "groups", title: () => "Groups", load: () => import("./pages/groups.js") },
  { path: "groups/:group", title: ({ group }) => group, load: () => import("./pages/group.js") },
  { path: "queues", title: () => "Queues", load: () => import("./pages/queues.js") },
  { path: "queues/:queue", title: ({ queue }) => queue, load: () => import("./pages/queue.js") },
  { path: "subscriptions", title: () => "Subscriptions", load: () => import("./pages/subscriptions.js") },
  { path: "subscriptions/:subscription", title: ({ subscription }) => subscription, load: () => import("./pages/subscription.js") },
  { path: "cliques", title: () => "Cliques", load: () => import("./pages/cliques.js") },
  { path: "cliques/:clique", title: ({ clique }) => clique, load: () => import("./pages/clique.js") },
  { path: "transactions", title: () => "Transactions", load: () => import("./pages/transactions.js") },
  { path: "pipelines", title: () => "Pipelines", load: () => import("./pages/pipelines.js") },
  { path: "cluster", title: () => "Cluster", load: () => import("./pages/cluster.js") },
  { path: "cluster/log", title: () => "Status log", load: () => import("./pages/status-log.js") },
  { path: "users", title: () => "Users and permissions", load: () => import("./pages/users.js") },
  { path: "users/:user", title: ({ user }) => user, load: () => import("./pages/user.js") },
];

/** The menu. */
export const navigation = [
  { path: "", title: "Overview" },
  { path: "topics", title: "Topics" },
  { path: "groups", title: "Groups" },
  { path: "queues", title: "Queues" },
  { path: "subscriptions", title: "Subscriptions" },
  { path: "cliques", title: "Cliques" },
  { path: "transactions", title: "Transactions" },
  { path: "pipelines", title: "Pipelines" },
  { path: "cluster", title: "Cluster" },
  { path: "users", title: "Users" },
];

/** Loads the code of all pages, so that one can be opened while the node does not answer. */
export function loadAll() {
  for (const page of pages) page.load().catch(() => {}); // opening the page tells
}

/** @type {Page} */
const missing = { path: "*", title: () => "Not found", load: () => import("./pages/missing.js") };

/** @param {string[]} segments @returns {{page: Page, params: Record<string, string>}} */
export function findPage(segments) {
  for (const page of pages) {
    const params = match(page.path ? page.path.split("/") : [], segments);
    if (params) return { page, params };
  }
  return { page: missing, params: {} };
}

/** @param {string[]} wanted @param {string[]} segments @returns {Record<string, string> | null} */
function match(wanted, segments) {
  if (wanted.length !== segments.length) return null;
  /** @type {Record<string, string>} */
  const params = {};
  for (const [at, part] of wanted.entries()) {
    if (part.startsWith(":")) params[part.slice(1)] = segments[at];
    else if (part !== segments[at]) return null;
  }
  return params;
}
