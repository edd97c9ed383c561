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
  const found = await get("me/operations", { query: { resource_type: resourceType, name }, signal });
  return (operation) => found.operations.includes(operation);
}
