/** The shell: navigation, the page for the current address, the login. `pages.js` lists the pages. */

import { closeDialogs } from "./elements/dialog.js";
import { login } from "./elements/login.js";
import { errorState, explain, loadingState, pageHead } from "./elements/parts.js";
import { toasts } from "./elements/toast.js";
import { ApiError, get, path, remove, whenLoginIsNeeded } from "./lib/api.js";
import { h, show } from "./lib/dom.js";
import { pause, visible } from "./lib/live.js";
import { otherNodes, rememberNodes } from "./lib/nodes.js";
import { link, segments, setQuery, startRouter } from "./lib/router.js";
import { session, setSession } from "./lib/session.js";
import { applyTheme, nextTheme, theme } from "./lib/theme.js";
import { findPage, loadAll, navigation } from "./pages.js";

/**
 * A page that is shown: `root` is its element, `signal` ends with it.
 *
 * @typedef {object} View
 * @property {Record<string, string>} params names from the address
 * @property {URLSearchParams} query
 * @property {HTMLElement} root
 * @property {AbortSignal} signal
 * @property {(error: Error | null) => void} stale tells that the page shows old figures, and why
 * @property {(changes: Record<string, string | number | null | undefined>) => void} setQuery
 * @property {() => void} reload shows the page again
 * @property {{principal: string, login_required: boolean, version: string, cluster_id: string, node_id: number}} me
 */

/** Between two looks at whether the node answers again. */
const RETRY_MS = 2_000;
/** A browser does not ask again for a script that it could not get: the page is then loaded again as a whole. */
const NO_SCRIPT = "no_script";

const content = h("main", { id: "content", tabindex: -1 });
const banner = h("div", { class: "banner", role: "status" });
const menu = h("nav", { "aria-label": "Pages", id: "menu" });
const account = h("div", { class: "account" });
/** Ends the page that is shown. @type {AbortController} */
let current = new AbortController();
/** @type {View["me"] | null} */
let me = null;
let isComplete = false;

applyTheme();
const base = document.querySelector("base");
if (base) base.href = document.baseURI; // it would otherwise depend on the address that is shown
document.getElementById("app")?.append(makeShell());
whenLoginIsNeeded(() => content.querySelector(".login") || showLogin(session() !== null));
startRouter(() => void showPage());
void showPage();

function makeShell() {
  const toggle = h("button", { type: "button", class: "quiet menu-toggle", "aria-expanded": "false", "aria-controls": "side", onclick: () => openMenu(!side.classList.contains("open")) }, "Menu");
  const side = h("div", { class: "side", id: "side" }, menu, h("div", { class: "side-foot" }, account, themeButton()));
  const openMenu = (/** @type {boolean} */ isOpen) => {
    side.classList.toggle("open", isOpen);
    toggle.setAttribute("aria-expanded", String(isOpen));
  };
  menu.addEventListener("click", () => openMenu(false));
  document.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape" || !side.classList.contains("open") || document.querySelector("dialog")) return;
    openMenu(false);
    toggle.focus();
  });
  const skip = h("a", { class: "skip", href: location.href, onclick: (/** @type {Event} */ event) => (event.preventDefault(), content.focus()) }, "Skip to the content");
  const brand = h("a", { href: "./", class: "brand" }, h("img", { src: "static/icon.svg", alt: "", width: 28, height: 28 }), "Penstock");
  return h("div", { class: "shell" }, skip, h("header", { class: "top" }, brand, toggle), side, h("div", { class: "main" }, banner, content), toasts);
}

function themeButton() {
  const names = /** @type {Record<string, string>} */ ({ system: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" });
  const made = h("button", { type: "button", class: "quiet", onclick: () => (made.textContent = names[nextTheme()]) }, names[theme()]);
  return made;
}

async function showPage() {
  current.abort();
  closeDialogs();
  const mine = (current = new AbortController());
  tellStale(null);
  show(content, loadingState());
  const { page, params } = findPage(segments());
  try {
    const [module, caller] = await Promise.all([load(page), me ?? get("me", { signal: mine.signal })]);
    if (mine.signal.aborted) return;
    me = caller;
    drawNavigation();
    document.title = `${page.title(params)} · Penstock`;
    const root = h("div", { class: "page" });
    show(content, root);
    await module.show({ params, query: new URLSearchParams(location.search), root, signal: mine.signal, stale: tellStale, setQuery, reload: () => void showPage(), me: /** @type {View["me"]} */ (me) });
    if (mine.signal.aborted) return;
    focusHeading();
    void completeOnce();
  } catch (trouble) {
    if (mine.signal.aborted) return;
    if (trouble instanceof ApiError && trouble.status === 401) return;
    const again = trouble instanceof ApiError && trouble.code === NO_SCRIPT ? () => location.reload() : () => void showPage();
    const isFinal = trouble instanceof ApiError && [403, 404].includes(trouble.status);
    const [list] = navigation.filter((one) => one.path === segments()[0] && one.path !== page.path);
    const back = isFinal ? [h("a", { href: list?.path ?? "./", class: "button" }, `Go to ${list?.title ?? "the overview"}`)] : [];
    show(
      content,
      h("div", { class: "page" }, pageHead(page.title(params), { trail: list ? [link(list.path, list.title)] : [] }), errorState(trouble, isFinal ? undefined : again, ...back)),
      trouble instanceof ApiError && trouble.status === 0 ? otherNodes() : null,
    );
    if (me) drawNavigation();
    if (!(trouble instanceof ApiError)) throw trouble;
    if (trouble.status === 0) void whenItAnswers(mine.signal, again);
  }
}

/** @param {import("./pages.js").Page} page */
async function load(page) {
  try {
    return await page.load();
  } catch (trouble) {
    if (!(trouble instanceof TypeError)) throw trouble;
    throw new ApiError(0, NO_SCRIPT, `The node at ${location.host} does not answer.`);
  }
}

/** After the first page: what is needed when the node goes away. */
async function completeOnce() {
  if (isComplete) return;
  isComplete = true;
  await new Promise((done) => (window.requestIdleCallback ?? setTimeout)(done, { timeout: RETRY_MS }));
  loadAll();
  await rememberNodes();
}

/** @param {AbortSignal} signal @param {() => void} act */
async function whenItAnswers(signal, act) {
  while (!signal.aborted) {
    await pause(RETRY_MS, signal);
    await visible(signal);
    try {
      if (!signal.aborted) await get("me", { signal });
      if (!signal.aborted) act();
      return;
    } catch (trouble) {
      if (!(trouble instanceof ApiError)) return;
    }
  }
}

/** A new page is announced by its heading, unless the reader has begun to use it. */
function focusHeading() {
  const isFree = document.activeElement === document.body || document.activeElement === null || menu.contains(document.activeElement);
  if (isFree) /** @type {HTMLElement | null} */ (content.querySelector("h1"))?.focus({ preventScroll: true });
}

function drawNavigation() {
  const [first = ""] = segments();
  show(menu, h("ul", {}, ...navigation.map((one) => h("li", {}, h("a", { href: one.path || "./", "aria-current": one.path === first ? "page" : null }, one.title)))));
  const user = me?.principal.replace(/^User:/, "") ?? "";
  show(account, me?.login_required ? [h("span", { class: "user", title: me.principal }, user), session() ? h("button", { type: "button", class: "quiet", onclick: () => void logOut() }, "Log out") : null] : null);
}

/** @param {Error | null} trouble */
function tellStale(trouble) {
  banner.classList.toggle("shown", trouble !== null);
  content.classList.toggle("stale", trouble !== null);
  const isGone = trouble instanceof ApiError && trouble.status === 0;
  show(banner, trouble === null ? null : h("p", {}, `${explain(trouble).message} The page shows what it knew before, and tries again.`), isGone ? otherNodes() : null);
}

/** @param {boolean} [hasEnded] somebody was logged in, and did not log out */
function showLogin(hasEnded = false) {
  current.abort();
  closeDialogs();
  tellStale(null);
  setSession(null);
  me = null;
  show(menu);
  show(account);
  document.title = "Log in · Penstock";
  show(content, hasEnded ? h("p", { class: "why", role: "status" }, "Your login has ended. Log in to go on.") : null, login(() => void showPage()));
  /** @type {HTMLElement | null} */ (content.querySelector("input"))?.focus();
}

async function logOut() {
  const known = session();
  try {
    if (known?.user && known.tokenId) await remove(path`users/${known.user}/tokens/${known.tokenId}`);
  } catch (trouble) {
    if (!(trouble instanceof ApiError)) throw trouble; // the token ends by itself
  }
  showLogin();
}
