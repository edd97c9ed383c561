/** The login: a user and its password, or a token. `lib/session.js` says what is kept of it. */

import { ApiError, get, path, post, remove } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { basic, setSession } from "../lib/session.js";
import { fieldForm } from "./form.js";
import { toast } from "./toast.js";

/** A working day: the page asks again after that, however long the tab is open. */
const LIFETIME_MS = 8 * 3600 * 1000;
/** The description of the page's own tokens. */
const DESCRIPTION = "web console";
/** The code of a refusal by limits.max_tokens_per_user, or limits.max_tokens. */
const TOO_MANY_TOKENS = "policy_violation";

/** @param {() => void} done called when somebody has logged in */
export function login(done) {
  const byPassword = fieldForm({
    fields: [
      { name: "user", label: "User", required: true, autocomplete: "username" },
      { name: "password", label: "Password", type: "password", required: true, autocomplete: "current-password" },
    ],
    submitLabel: "Log in",
    submit: async ({ user, password }) => {
      await logIn(user, password);
      done();
    },
  });
  const byToken = fieldForm({
    fields: [{ name: "token", label: "Token", type: "password", required: true, help: "An API token (pst_…), or one of your identity provider." }],
    submitLabel: "Log in with a token",
    submit: async ({ token }) => {
      const authorization = `Bearer ${token.trim()}`;
      await get("me", { authorization });
      setSession({ authorization, user: null, tokenId: null });
      done();
    },
  });
  return h("div", { class: "login card" }, h("h1", {}, "Log in to Penstock"), byPassword, h("details", {}, h("summary", {}, "With a token instead"), byToken));
}

/** @param {string} user @param {string} password */
async function logIn(user, password) {
  const authorization = basic(user, password);
  await get("me", { authorization });
  try {
    const made = await makeToken(user, authorization);
    setSession({ authorization: `Bearer ${made.token}`, user, tokenId: made.token_id });
  } catch (trouble) {
    // A cluster without a controller makes no tokens, and is to be looked at all the more: this tab keeps the password
    // in its memory until it is reloaded.
    setSession({ authorization, user, tokenId: null }, { keep: false });
    const why = trouble instanceof ApiError ? trouble.message : String(trouble);
    toast(`You are logged in until this tab is reloaded. No token could be made for it: ${why}`, "bad");
  }
}

/** Tabs that were closed without a logout leave their tokens behind: the oldest one makes room. @param {string} user @param {string} authorization */
async function makeToken(user, authorization) {
  const make = () => post(path`users/${user}/tokens`, { description: DESCRIPTION, lifetime_ms: LIFETIME_MS }, { authorization });
  try {
    return await make();
  } catch (trouble) {
    if (!(trouble instanceof ApiError) || trouble.code !== TOO_MANY_TOKENS) throw trouble;
    const { tokens } = await get(path`users/${user}/tokens`, { authorization });
    const [oldest] = tokens.filter((/** @type {any} */ one) => one.description === DESCRIPTION); // the API lists the oldest first
    if (!oldest) throw trouble;
    await remove(path`users/${user}/tokens/${oldest.token_id}`, { authorization });
    return make();
  }
}
