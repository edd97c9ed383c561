/** One user: its roles and tokens, and what it may do, and why. */

import { dataTable } from "../elements/data-table.js";
import { confirmDialog, formDialog, openDialog } from "../elements/dialog.js";
import { fieldForm } from "../elements/form.js";
import { badge, button, emptyState, facts, pageHead, section } from "../elements/parts.js";
import { toast } from "../elements/toast.js";
import { ApiError, get, path, post, put, remove } from "../lib/api.js";
import { h, show as fill } from "../lib/dom.js";
import { count, time } from "../lib/format.js";
import { permissions } from "../lib/permissions.js";
import { link, navigate } from "../lib/router.js";
import { OPERATIONS, RESOURCES, choices, giveRole, grantTable, ruleColumns } from "./users.js";

const DAY_MS = 24 * 3600 * 1000;

/**
 * @typedef {import("../main.js").View} View
 * @typedef {import("./users.js").Rule} Rule
 * @typedef {{token_id: string, description: string, created_ms: number, expires_ms: number | null}} Token
 */

/** @param {View} view */
export async function show(view) {
  const name = view.params.user;
  const principal = `User:${name}`;
  const [may, { users }] = await Promise.all([permissions(view.signal), get("users", { signal: view.signal })]);
  const user = users.find((/** @type {any} */ one) => one.user === name);
  const mayAlter = may("alter");
  const actions = user && mayAlter ? [button("Set a password", () => setPassword(name)), button("Delete", () => deleteUser(name), { class: "danger" })] : [];
  view.root.append(pageHead(name, { trail: [link("users", "Users")], actions, note: mayAlter ? null : "You may look at this user, and not change it." }));
  if (user) view.root.append(section("User", facts([["Principal", principal], ["Logs in with", user.mechanisms.join(", ") || "nothing yet"], ["Super user", user.super_user ? badge("yes, may do everything", "warn") : "no"], ["API tokens", count(user.tokens)]])));
  else view.root.append(h("p", { class: "note" }, "No user has this name. Rules and roles that name it would count for a user that gets the name."));
  if (view.me.login_required) view.root.append(...(await permissionParts(view, principal, mayAlter)));
  else view.root.append(emptyState("Permissions do not count here", "This broker requires no login, so everybody may do everything. Start it with --require-login."));
  if (user) view.root.append(await tokenPart(view, name, mayAlter));
}

// --- permissions

/** @param {View} view @param {string} principal @param {boolean} mayAlter */
async function permissionParts(view, principal, mayAlter) {
  const [{ grants }, { roles }, effective] = await Promise.all([
    get("grants", { query: { principal }, signal: view.signal }),
    get("roles", { signal: view.signal }),
    get("acls/effective", { query: { principal }, signal: view.signal }),
  ]);
  const names = roles.map((/** @type {any} */ role) => role.role);
  const give = mayAlter ? h("div", { class: "actions" }, button("Give a role", () => giveRole(view, names, principal))) : null;
  return [
    section("Roles", grantTable(view, grants, mayAlter), give),
    section("What may this user do, and why?", checkForm(view, principal), ruleTable(effective)),
  ];
}

/** @typedef {{rule: Rule, source: string | null}} EffectiveRule */

/** @param {{super_user: boolean, rules: EffectiveRule[]}} effective */
function ruleTable(effective) {
  if (effective.super_user) return h("p", {}, badge("super user", "warn"), " It may do everything: no rule is looked at.");
  const table = dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<EffectiveRule>>} */ ({
      caption: "Rules that count for this user",
      noun: "rule",
      rowKey: (row) => JSON.stringify(row),
      empty: () => emptyState("It may do nothing", "No role and no rule names it. Give it a role."),
      columns: [
        ...ruleColumns((/** @type {EffectiveRule} */ row) => row.rule),
        { title: "Because of", value: (row) => row.source ?? (row.rule.principal === "User:*" ? "a rule for everybody" : "a rule of its own"), class: "prose" },
      ],
    }),
  );
  table.rows = effective.rules;
  return table;
}

/** Asks about one operation. @param {View} view @param {string} principal */
function checkForm(view, principal) {
  const answer = h("div", { role: "status", class: "decision" });
  const form = fieldForm({
    fields: [
      { name: "operation", label: "Operation", type: "select", options: choices(OPERATIONS.filter((word) => word !== "all")), required: true },
      { name: "resource_type", label: "On a", type: "select", options: choices(RESOURCES), required: true },
      { name: "name", label: "Name", placeholder: "orders", help: "The cluster needs none." },
    ],
    submitLabel: "Ask",
    submit: async ({ operation, resource_type, name }) => {
      const found = await get("acls/check", { query: { principal, operation, resource_type, name }, signal: view.signal });
      fill(answer, badge(found.allowed ? "allowed" : "denied", found.allowed ? "good" : "bad"), ` ${found.reason}`);
    },
  });
  form.classList.add("in-a-row");
  return h("div", { class: "stack" }, form, answer);
}

// --- tokens

/** @param {View} view @param {string} user @param {boolean} mayAlter */
async function tokenPart(view, user, mayAlter) {
  const table = dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<Token>>} */ ({
      caption: "API tokens",
      noun: "token",
      filterable: false,
      rowKey: (token) => token.token_id,
      empty: () => h("p", { class: "note" }, "There are none. A program can log in with a token instead of the password."),
      columns: [
        { title: "Token", value: (token) => token.token_id, class: "mono" },
        { title: "Description", value: (token) => token.description, class: "name" },
        { title: "Made", value: (token) => token.created_ms, cell: (token) => time(token.created_ms) },
        { title: "Expires", value: (token) => token.expires_ms, cell: (token) => (token.expires_ms === null ? "never" : time(token.expires_ms)) },
        { title: "", value: () => "", unsorted: true, cell: (token) => (mayAlter ? button("Revoke", () => revoke(view, user, token), { "aria-label": `Revoke the token ${token.token_id}` }) : "") },
      ],
    }),
  );
  try {
    table.rows = (await get(path`users/${user}/tokens`, { signal: view.signal })).tokens;
  } catch (trouble) {
    if (!(trouble instanceof ApiError) || trouble.status !== 403) throw trouble;
  }
  return section("API tokens", table, mayAlter ? h("div", { class: "actions" }, button("Make a token", () => makeToken(view, user))) : null);
}

/** @param {View} view @param {string} user */
function makeToken(view, user) {
  formDialog(`Make a token for ${user}`, {
    fields: [
      { name: "description", label: "Description", help: "What it is for." },
      { name: "days", label: "Days until it expires", type: "number", min: 1, max: 3650, help: "Left out: never." },
    ],
    submitLabel: "Make the token",
    submit: async ({ description, days }) => {
      const made = await post(path`users/${user}/tokens`, { description, lifetime_ms: days === null ? null : days * DAY_MS });
      const dialog = openDialog("The new token", (close) => [
        h("p", {}, "Copy it now: it is not shown again. Programs send it as Authorization: Bearer."),
        h("input", { readonly: true, value: made.token, "aria-label": "Token", class: "mono", onfocus: (/** @type {FocusEvent} */ event) => /** @type {HTMLInputElement} */ (event.target).select() }),
        h("div", { class: "actions" }, button("Done", close, { class: "primary" })),
      ]);
      dialog.addEventListener("close", () => view.signal.aborted || view.reload());
    },
  });
}

/** @param {View} view @param {string} user @param {Token} token */
function revoke(view, user, token) {
  confirmDialog(`Revoke ${token.token_id}?`, {
    text: "Programs that use it cannot log in any more, and their connections end.",
    action: "Revoke the token",
    run: async () => {
      await remove(path`users/${user}/tokens/${token.token_id}`);
      toast("The token was revoked.");
      view.reload();
    },
  });
}

// --- the user

/** @param {string} user */
function setPassword(user) {
  formDialog(`Set a password for ${user}`, {
    fields: [{ name: "password", label: "New password", type: "password", required: true, autocomplete: "new-password" }],
    submitLabel: "Set it",
    submit: async ({ password }) => {
      await put(path`users/${user}/password`, { password });
      toast(`The password of ${user} was changed.`);
    },
  });
}

/** @param {string} user */
function deleteUser(user) {
  confirmDialog(`Delete ${user}?`, {
    text: "Its tokens are deleted with it. Rules and roles that name it stay: a user that gets the name later has them.",
    action: "Delete the user",
    typed: user,
    run: async () => {
      await remove(path`users/${user}`);
      toast(`User ${user} was deleted.`);
      navigate("users");
    },
  });
}
