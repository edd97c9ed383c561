/**
 * The login of this tab. The page logs in with a password once and makes an API token, which expires after some hours; the
 * password is forgotten. The token is kept in sessionStorage: it ends with the tab, no other site's page can make the
 * browser send it (a cookie could be sent by one), and the page shows no message as HTML that could read it.
 *
 * @typedef {{authorization: string, user: string | null, tokenId: string | null}} Session
 */

const NAME = "penstock.session";

/** @type {Session | null} */
let current = restore();

/** @returns {Session | null} */
function restore() {
  try {
    return JSON.parse(sessionStorage.getItem(NAME) ?? "null");
  } catch {
    return null;
  }
}

/** @returns {Session | null} */
export function session() {
  return current;
}

/** @param {Session | null} next @param {{keep?: boolean}} [options] */
export function setSession(next, { keep = true } = {}) {
  current = next;
  if (next && keep) sessionStorage.setItem(NAME, JSON.stringify(next));
  else sessionStorage.removeItem(NAME);
}

/** Text as the header Authorization: Basic has it. @param {string} user @param {string} password */
export function basic(user, password) {
  const text = new TextEncoder().encode(`${user}:${password}`);
  return `Basic ${btoa(String.fromCharCode(...text))}`;
}

/** The subprotocols by which a WebSocket logs in: a browser gives it no other header. @returns {string[]} */
export function socketProtocols() {
  const [scheme, token] = (current?.authorization ?? "").split(" ");
  return scheme === "Bearer" ? ["penstock", `bearer.${token}`] : ["penstock"];
}
