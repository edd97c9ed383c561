/**
 * Work that is repeated while its page is shown. A tab in the background asks nothing, and a page that was left neither.
 *
 * @typedef {{signal: AbortSignal, stale: (error: Error | null) => void}} LiveView
 */

import { ApiError } from "./api.js";

/** How soon to try again after a failure. */
const RETRY_MS = 2_000;

/**
 * Runs `work` now and then every `everyMs`, one after the other. The first failure is thrown, so that the page can show
 * it; later ones are told to the view, which keeps what it shows, and the work goes on.
 *
 * @param {LiveView} view
 * @param {number} everyMs
 * @param {() => Promise<void>} work
 */
export async function live(view, everyMs, work) {
  await work();
  repeat(view, everyMs, work);
}

/** The same for a page that has done the first work itself. @param {LiveView} view @param {number} everyMs @param {() => Promise<unknown>} work */
export async function repeat(view, everyMs, work) {
  let waitMs = everyMs;
  while (!view.signal.aborted) {
    await pause(waitMs, view.signal);
    await visible(view.signal);
    if (view.signal.aborted) return;
    try {
      await work();
      view.stale(null);
      waitMs = everyMs;
    } catch (trouble) {
      if (view.signal.aborted) return;
      if (!(trouble instanceof ApiError)) throw trouble;
      view.stale(trouble);
      waitMs = Math.min(everyMs, RETRY_MS);
    }
  }
}

/** @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
export function pause(ms, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });
}

/** @param {AbortSignal} signal @returns {Promise<void>} */
export function visible(signal) {
  if (document.visibilityState === "visible") return Promise.resolve();
  return new Promise((done) => {
    const look = () => {
      if (document.visibilityState !== "visible" && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look, { once: true });
  });
}
