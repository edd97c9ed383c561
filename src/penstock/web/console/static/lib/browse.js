/**
 * Messages of a topic over the WebSocket /v1/browse. The page gives credit for as many messages as it has drawn, so a tail
 * never outruns the browser.
 *
 * @typedef {{schema_id: string, schema_type: string | null, schema_name: string | null, json: string | null,
 *   truncated: boolean, problem: string | null}} Decoded a key or a value by its schema in a registry
 * @typedef {{partition: number, offset: number, timestamp_ms: number, key: string | null, key_encoding: string,
 *   value: string | null, value_encoding: string, headers: {name: string, value: string | null, encoding: string}[],
 *   key_bytes: number | null, value_bytes: number | null, truncated: boolean, key_decoded: Decoded | null,
 *   value_decoded: Decoded | null}} Message
 * @typedef {{scanned: number, total: number, found: number, reason?: string}} Progress
 * @typedef {{onMessages: (messages: Message[]) => void, onProgress: (progress: Progress) => void,
 *   onEnd: (progress: Progress) => void, onError: (error: ApiError) => void}} Listener
 */

import { ApiError, apiUrl } from "./api.js";
import { socketProtocols } from "./session.js";

const CREDIT = 200;

export class Scan {
  /** @type {WebSocket} */
  #socket;
  #hasEnded = false;
  #isPaused = false;
  #owed = 0;
  /** @type {(act: () => void) => unknown} */
  #later;

  /**
   * @param {Record<string, unknown>} request
   * @param {Listener} listener
   * @param {AbortSignal} signal
   * @param {{isDrawn?: boolean}} [options] false: nothing is drawn, so the scan also goes on in a hidden tab
   */
  constructor(request, listener, signal, { isDrawn = true } = {}) {
    this.#later = isDrawn ? requestAnimationFrame : queueMicrotask;
    const url = apiUrl("browse");
    url.protocol = url.protocol.replace("http", "ws");
    this.#socket = new WebSocket(url, socketProtocols());
    this.#socket.onopen = () => this.send({ type: "browse", credit: CREDIT, ...request });
    this.#socket.onmessage = (event) => this.hear(JSON.parse(event.data), listener);
    this.#socket.onclose = () => this.end(() => listener.onError(new ApiError(0, "unreachable", `The node at ${url.host} does not answer, or has ended the scan.`)));
    signal.addEventListener("abort", () => this.end(() => {}), { once: true });
  }

  get isPaused() {
    return this.#isPaused;
  }

  /** @param {any} frame @param {Listener} listener */
  hear(frame, listener) {
    if (frame.type === "messages") {
      listener.onMessages(frame.messages);
      this.#owed += frame.messages.length;
      this.#later.call(window, () => this.grant());
    } else if (frame.type === "progress") listener.onProgress(frame);
    else if (frame.type === "end") this.end(() => listener.onEnd(frame));
    else if (frame.type === "error") this.end(() => listener.onError(new ApiError(/authorization/.test(frame.code) ? 403 : 400, frame.code, frame.message)));
  }

  grant() {
    if (this.#isPaused || this.#owed === 0) return;
    this.send({ type: "more", credit: this.#owed });
    this.#owed = 0;
  }

  /** @param {boolean} isPaused */
  pause(isPaused) {
    this.#isPaused = isPaused;
    this.grant();
  }

  stop() {
    this.send({ type: "stop" });
  }

  /** @param {object} frame */
  send(frame) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }

  /** @param {() => void} tell */
  end(tell) {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#socket.close();
    tell();
  }
}

/**
 * Runs a scan whose messages are not drawn, to its end.
 *
 * @param {Record<string, unknown>} request
 * @param {(messages: Message[]) => void} onMessages
 * @param {AbortSignal} signal
 * @returns {Promise<Progress | null>} null: `signal` has ended it
 */
export function scanned(request, onMessages, signal) {
  return new Promise((done, fail) => {
    if (signal.aborted) return done(null);
    new Scan(request, { onMessages, onProgress: () => {}, onEnd: done, onError: fail }, signal, { isDrawn: false });
    signal.addEventListener("abort", () => done(null), { once: true });
  });
}
