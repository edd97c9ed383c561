/**
 * Requests to the node's public API. All addresses are relative to the page's base, which is /console/ below whatever
 * prefix a reverse proxy has.
 */

import { session } from "./session.js";

/** The address of a path of the API, below /v1/. @param {string} path */
export function apiUrl(path) {
  return new URL(`../v1/${path}`, document.baseURI);
}

/** A refusal of the API, or a node that does not answer (status 0). */
export class ApiError extends Error {
  /** @param {number} status @param {string} code @param {string} message @param {string | null} [field] */
  constructor(status, code, message, field = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.field = field;
  }
}

/** Told when a request needs a login. @type {() => void} */
let onLoginNeeded = () => {};

/** @param {() => void} listener */
export function whenLoginIsNeeded(listener) {
  onLoginNeeded = listener;
}

/**
 * A value as a segment of a path. A browser takes the segments . and .. out of an address, also as %2E, so names of one
 * or two dots get a tilde, which the API takes away; names that would be taken for such ones get one more.
 *
 * @param {string | number} value
 */
export function segment(value) {
  return encodeURIComponent(/^~*\.{1,2}$/.test(String(value)) ? `~${value}` : value);
}

/** The value that a segment stands for. @param {string} text decoded */
export function unsegmented(text) {
  return /^~+\.{1,2}$/.test(text) ? text.slice(1) : text;
}

/**
 * A path with its values encoded: path`topics/${name}/records`.
 *
 * @param {TemplateStringsArray} texts
 * @param {...(string | number)} values
 */
export function path(texts, ...values) {
  return texts.reduce((made, text, at) => made + (at ? segment(values[at - 1]) : "") + text, "");
}

/**
 * @typedef {{query?: Record<string, string | number | boolean | null | undefined>, body?: unknown,
 *   signal?: AbortSignal, authorization?: string}} RequestOptions
 */

/**
 * @param {string} method
 * @param {string} where a path below /v1/, made with `path`
 * @param {RequestOptions} [options]
 * @returns {Promise<any>} the JSON of the answer
 */
export async function call(method, where, { query = {}, body, signal, authorization } = {}) {
  const url = apiUrl(where);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, String(value));
  }
  /** @type {Record<string, string>} */
  const headers = {};
  const login = authorization ?? session()?.authorization;
  if (login) headers.authorization = login;
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await send(url, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  if (answer.status === 401 && authorization === undefined) onLoginNeeded();
  return readAnswer(answer);
}

/** @param {URL} url @param {RequestInit} request */
async function send(url, request) {
  try {
    return await fetch(url, { ...request, credentials: "same-origin", cache: "no-store" });
  } catch (trouble) {
    if (request.signal?.aborted) throw trouble;
    throw new ApiError(0, "unreachable", `The node at ${url.host} does not answer.`);
  }
}

/** @param {Response} answer */
async function readAnswer(answer) {
  const text = await answer.text();
  /** @type {any} */
  let found = null;
  try {
    found = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(answer.status, "no_json", `${answer.status} ${answer.statusText}: not an answer of Penstock. Is a proxy in between?`);
  }
  if (answer.ok) return found;
  const error = found?.error ?? {};
  throw new ApiError(answer.status, error.code ?? "refused", error.message ?? answer.statusText, error.field ?? null);
}

/** @param {string} where @param {RequestOptions} [options] */
export const get = (where, options) => call("GET", where, options);
/** @param {string} where @param {unknown} body @param {RequestOptions} [options] */
export const post = (where, body, options) => call("POST", where, { ...options, body });
/** @param {string} where @param {unknown} body @param {RequestOptions} [options] */
export const patch = (where, body, options) => call("PATCH", where, { ...options, body });
/** @param {string} where @param {unknown} body @param {RequestOptions} [options] */
export const put = (where, body, options) => call("PUT", where, { ...options, body });
/** @param {string} where @param {RequestOptions} [options] */
export const remove = (where, options) => call("DELETE", where, options);
