/**
 * What the caller may do, so that pages leave out what would be refused anyway. The API decides all the same: rules may
 * have changed since.
 */

import { get } from "./api.js";

/**
 * @typedef {(operation: string) => boolean} May
 */

/**
 * The caller's operations on the cluster, or on a resource; without a name, on all of its type.
 *
 * @param {AbortSignal} signal
 * @param {string} [resourceType]
 * @param {string} [name]
 * @returns {Promise<May>}
 */
export async function permissions(signal, resourceType = "cluster", name) {
  return ask(signal, { resource_type: resourceType, name });
}

/** The caller's operations on at least one resource of a type that could exist. @param {AbortSignal} signal @param {string} resourceType */
export async function somePermissions(signal, resourceType) {
  return ask(signal, { resource_type: resourceType, some: true });
}

/** @param {AbortSignal} signal @param {Record<string, string | boolean | undefined>} query @returns {Promise<May>} */
async function ask(signal, query) {
  const found = await get("me/operations", { query, signal });
  return (operation) => found.operations.includes(operation);
}
