/** Users, roles with those who have them, and access rules. One user's page says what it may do, and why. */

import { dataTable } from "../elements/data-table.js";
import { confirmDialog, formDialog } from "../elements/dialog.js";
import { badge, button, emptyState, pageHead, section, tabs } from "../elements/parts.js";
import { toast } from "../elements/toast.js";
import { get, path, post, put, remove } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { count, plural } from "../lib/format.js";
import { permissions } from "../lib/permissions.js";
import { link, navigate } from "../lib/router.js";

export const OPERATIONS = ["read", "write", "create", "delete", "alter", "describe", "describe_configs", "alter_configs", "idempotent_write", "cluster_action", "create_tokens", "describe_tokens", "two_phase_commit", "all"];
export const RESOURCES = ["topic", "group", "cluster", "transactional_id", "user"];

/**
 * @typedef {import("../main.js").View} View
 * @typedef {{user: string, principal: string, mechanisms: string[], tokens: number, super_user: boolean}} User
 * @typedef {{principal: string, operation: string, resource_type: string, name: string, pattern_type: string, host: string,
 *   permission: string}} Rule
 * @typedef {{role: string, principal: string, name: string, pattern_type: string, host: string}} Grant
 */

/** @param {View} view */
export async function show(view) {
  const may = await permissions(view.signal);
  const part = view.query.get("part") ?? "users";
  const shown = part === "roles" ? showRoles : part === "rules" ? showRules : showUsers;
  const isOpen = !view.me.login_required;
  const head = await shown(view, may("alter"));
  const note = isOpen
    ? "This broker requires no login, so everybody may do everything. Users count when it is started with --require-login."
    : may("alter")
      ? null
      : "You may look at users and permissions, and not change them.";
  const parts = [
    { id: "users", title: "Users", href: "users" },
    { id: "roles", title: "Roles", href: "users?part=roles" },
    { id: "rules", title: "Access rules", href: "users?part=rules" },
  ];
  view.root.append(pageHead("Users and permissions", { actions: may("alter") ? head.actions : [], note }), isOpen ? "" : tabs("Users and permissions", parts, part), ...head.content);
}

/** A number of choices for a select. @param {string[]} words @returns {[string, string][]} */
export function choices(words) {
  return words.map((word) => [word, word]);
}

/** The names that a rule or a grant is for. @param {{name: string | null, pattern_type: string}} one */
export function patternOf(one) {
  if (one.pattern_type === "prefixed") return `${one.name}…`;
  return one.name === "*" ? "all" : (one.name ?? "");
}

/** A principal; a user's leads to its page. @param {string} principal */
export function principalLink(principal) {
  const user = principal.startsWith("User:") ? principal.slice(5) : null;
  if (principal === "User:*") return h("span", {}, "everybody");
  return user === null ? h("span", {}, principal) : link(path`users/${user}`, user);
}

// --- users

/** @param {View} view @param {boolean} mayAlter */
async function showUsers(view, mayAlter) {
  const table = dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<User>>} */ ({
      caption: "Users",
      noun: "user",
      rowKey: (user) => user.user,
      empty: () => emptyState("There are no users yet", "Create one, give it a role, and start the broker with --require-login.", mayAlter ? button("Create a user", createUser, { class: "primary" }) : null),
      columns: [
        { title: "User", value: (user) => user.user, cell: (user) => link(path`users/${user.user}`, user.user), class: "name" },
        { title: "May do", value: (user) => (user.super_user ? "everything" : ""), cell: (user) => (user.super_user ? badge("super user", "warn") : "by its roles and rules") },
        { title: "Logs in with", value: (user) => user.mechanisms.join(", ") },
        { title: "API tokens", value: (user) => user.tokens, cell: (user) => count(user.tokens), numeric: true },
      ],
    }),
  );
  table.rows = (await get("users", { signal: view.signal })).users;
  return { actions: [button("Create a user", createUser, { class: "primary" })], content: [table] };
}

function createUser() {
  formDialog("Create a user", {
    fields: [
      { name: "user", label: "Name", required: true },
      { name: "password", label: "Password", type: "password", required: true, autocomplete: "new-password", help: "It cannot be read later, only replaced." },
    ],
    submitLabel: "Create",
    submit: async ({ user, password }) => {
      await post("users", { user, password });
      toast(`User ${user} was created. Give it a role, or it may do nothing.`);
      navigate(path`users/${user}`);
    },
  });
}

// --- roles

/** @param {View} view @param {boolean} mayAlter */
async function showRoles(view, mayAlter) {
  const [{ roles }, { grants }] = await Promise.all([get("roles", { signal: view.signal }), get("grants", { signal: view.signal })]);
  const table = dataTable({
    caption: "Roles",
    noun: "role",
    filterable: false,
    sortColumn: -1,
    rowKey: (role) => role.role,
    columns: [
      { title: "Role", value: (role) => role.role, cell: (role) => [role.role, " ", role.built_in ? null : badge("your own")], class: "name" },
      { title: "May", value: (role) => role.permissions.length, unsorted: true, cell: (role) => h("ul", { class: "plain" }, ...role.permissions.map((/** @type {any} */ one) => h("li", {}, permissionWords(one)))) },
      { title: "Given to", value: (role) => role.grants, cell: (role) => count(role.grants), numeric: true },
      { title: "", value: () => "", unsorted: true, cell: (role) => (mayAlter && !role.built_in ? button("Delete", () => deleteRole(view, role.role), { "aria-label": `Delete the role ${role.role}` }) : "") },
    ],
  });
  table.rows = roles;
  const names = roles.map((/** @type {any} */ role) => role.role);
  return {
    actions: [button("Create a role", () => createRole(view)), button("Give a role", () => giveRole(view, names), { class: "primary" })],
    content: [section("Roles", table), section("Who has them", grantTable(view, grants, mayAlter))],
  };
}

/** @param {View} view */
function createRole(view) {
  formDialog("Create a role", {
    fields: [
      { name: "role", label: "Name", required: true },
      { name: "permissions", label: "Permissions", type: "textarea", required: true, placeholder: "topic read,describe\ngroup read billing*", help: "One in each line: a type, operations with commas, and a name if it is not for all. billing* means names that begin so." },
    ],
    submitLabel: "Create",
    submit: async ({ role, permissions }) => {
      await put(path`roles/${role}`, { permissions: permissions.split("\n").filter((/** @type {string} */ line) => line.trim()).map(permissionOf) });
      toast(`The role ${role} was created.`);
      view.reload();
    },
  });
}

/** @param {string} line */
function permissionOf(line) {
  const [resource_type, operations = "", name = "*"] = line.trim().split(/\s+/);
  const pattern = name.length > 1 && name.endsWith("*") ? { name: name.slice(0, -1), pattern_type: "prefixed" } : { name };
  return { resource_type, operations: operations.split(",").filter(Boolean), ...pattern };
}

/** @param {View} view @param {string} role */
function deleteRole(view, role) {
  confirmDialog(`Delete the role ${role}?`, {
    text: "A role that somebody has cannot be deleted: take it away first.",
    action: "Delete the role",
    run: async () => {
      await remove(path`roles/${role}`);
      toast(`The role ${role} was deleted.`);
      view.reload();
    },
  });
}

/** @param {any} one */
function permissionWords(one) {
  const names = one.resource_type === "cluster" ? "the cluster" : one.name === "*" && one.pattern_type === "literal" ? `all ${one.resource_type}s`.replace("_id", " id") : `${one.resource_type} ${patternOf(one)}`;
  return `${one.permission === "deny" ? "not " : ""}${one.operations.includes("all") ? "everything" : one.operations.join(", ")} on ${names}`;
}

/** @param {View} view @param {Grant[]} grants @param {boolean} mayAlter */
export function grantTable(view, grants, mayAlter) {
  const table = dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<Grant>>} */ ({
      caption: "Roles that are given",
      noun: "grant",
      filterable: grants.length > 10,
      rowKey: (grant) => JSON.stringify(grant),
      empty: () => emptyState("No role is given yet", "A role is the simplest way to give permissions: viewer, reader, writer, operator or admin, for all names or for those with a prefix."),
      columns: [
        { title: "Who", value: (grant) => grant.principal, cell: (grant) => principalLink(grant.principal), class: "name" },
        { title: "Role", value: (grant) => grant.role },
        { title: "For", value: (grant) => patternOf(grant) },
        { title: "From host", value: (grant) => grant.host, cell: (grant) => (grant.host === "*" ? "any" : grant.host) },
        { title: "", value: () => "", unsorted: true, cell: (grant) => (mayAlter ? button("Take away", () => takeRole(view, grant), { "aria-label": `Take ${grant.role} from ${grant.principal}` }) : "") },
      ],
    }),
  );
  table.rows = grants;
  return table;
}

/** @param {View} view @param {string[]} roles @param {string} [principal] */
export function giveRole(view, roles, principal) {
  formDialog("Give a role", {
    fields: [
      ...(principal ? [] : [{ name: "principal", label: "To whom", required: true, placeholder: "User:alice", help: "User:NAME, Group:NAME, or User:* for everybody." }]),
      { name: "role", label: "Role", type: "select", options: choices(roles), required: true },
      { name: "name", label: "For names that begin with", help: "Topics, groups and transactional ids. Left out: all of them, and the cluster." },
    ],
    submitLabel: "Give the role",
    submit: async (values) => {
      const names = values.name ? { name: values.name, pattern_type: "prefixed" } : {};
      await post("grants", { role: values.role, principal: principal ?? values.principal, ...names });
      toast(`${principal ?? values.principal} has the role ${values.role} now.`);
      view.reload();
    },
  });
}

/** @param {View} view @param {Grant} grant */
function takeRole(view, grant) {
  confirmDialog(`Take ${grant.role} from ${grant.principal}?`, {
    text: "The permission ends at once, also for connections that are open.",
    action: "Take it away",
    run: async () => {
      await remove("grants", { query: { ...grant } });
      toast(`${grant.principal} has lost the role ${grant.role}.`);
      view.reload();
    },
  });
}

// --- access rules

/** @param {View} view @param {boolean} mayAlter */
async function showRules(view, mayAlter) {
  const table = dataTable(
    /** @type {Partial<import("../elements/data-table.js").DataTable<Rule>>} */ ({
      caption: "Access rules",
      noun: "rule",
      rowKey: (rule) => JSON.stringify(rule),
      empty: () => emptyState("There are no access rules", "Roles are simpler. Rules (Kafka's ACLs) allow or deny a single operation.", mayAlter ? button("Add a rule", () => addRule(view)) : null),
      columns: [
        { title: "Who", value: (rule) => rule.principal, cell: (rule) => principalLink(rule.principal), class: "name" },
        ...ruleColumns((rule) => rule),
        { title: "", value: () => "", unsorted: true, cell: (rule) => (mayAlter ? button("Remove", () => removeRule(view, rule), { "aria-label": `Remove the rule ${rule.operation} on ${rule.resource_type} ${rule.name} for ${rule.principal}` }) : "") },
      ],
    }),
  );
  table.rows = (await get("acls", { signal: view.signal })).acls;
  return { actions: [button("Add a rule", () => addRule(view), { class: "primary" })], content: [h("p", { class: "note" }, `${plural(table.rows.length, "rule")} beside those that roles make. A rule that denies wins over all that allow.`), table] };
}

/** @template R @param {(row: R) => Rule} ruleOf @returns {import("../elements/data-table.js").Column<R>[]} */
export function ruleColumns(ruleOf) {
  return [
    { title: "Permission", value: (row) => ruleOf(row).permission, cell: (row) => badge(ruleOf(row).permission, ruleOf(row).permission === "deny" ? "bad" : "good") },
    { title: "Operation", value: (row) => ruleOf(row).operation },
    { title: "On", value: (row) => ruleOf(row).resource_type },
    { title: "Names", value: (row) => patternOf(ruleOf(row)), class: "name" },
    { title: "From host", value: (row) => ruleOf(row).host, cell: (row) => (ruleOf(row).host === "*" ? "any" : ruleOf(row).host) },
  ];
}

/** @param {View} view */
function addRule(view) {
  formDialog("Add an access rule", {
    fields: [
      { name: "principal", label: "Who", required: true, placeholder: "User:alice", help: "User:NAME, Group:NAME, or User:* for everybody." },
      { name: "permission", label: "Permission", type: "select", options: choices(["allow", "deny"]), required: true },
      { name: "operation", label: "Operation", type: "select", options: choices(OPERATIONS), required: true, help: "read, write, delete and alter allow describe, too." },
      { name: "resource_type", label: "On a", type: "select", options: choices(RESOURCES), required: true, help: "Queues, subscriptions and cliques are groups." },
      { name: "name", label: "Name", placeholder: "*", help: "* for all. The cluster needs none." },
      { name: "prefixed", label: "All names that begin so", type: "checkbox" },
      { name: "host", label: "From host", placeholder: "*", help: "An address, or a network such as 10.1.0.0/16." },
    ],
    submitLabel: "Add",
    submit: async ({ prefixed, name, host, ...rule }) => {
      const pattern = name ? { name, pattern_type: prefixed ? "prefixed" : "literal" } : rule.resource_type === "cluster" ? {} : { name: "*" };
      await post("acls", { acls: [{ ...rule, ...pattern, host: host || "*" }] });
      toast("The rule was added.");
      view.reload();
    },
  });
}

/** @param {View} view @param {Rule} rule */
function removeRule(view, rule) {
  confirmDialog("Remove this rule?", {
    text: `${rule.permission} ${rule.principal} ${rule.operation} on ${rule.resource_type} ${patternOf(rule)}. This counts at once, also for connections that are open.`,
    action: "Remove the rule",
    run: async () => {
      await remove("acls", { query: { ...rule } });
      toast("The rule was removed.");
      view.reload();
    },
  });
}
