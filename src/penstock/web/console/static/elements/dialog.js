/** Dialogs: the browser's own, which hold the focus, close with Escape and give the focus back. They ask before a draft is lost. */

import { ApiError } from "../lib/api.js";
import { h, uniqueId } from "../lib/dom.js";
import { fieldForm } from "./form.js";
import { placeToasts } from "./toast.js";

/** @typedef {import("../lib/dom.js").Child} Child */

/**
 * Opens a dialog; it closes itself with `close`, with Escape, or with its cross.
 *
 * @param {string} title
 * @param {(close: () => void) => Child[]} content
 * @param {{wide?: boolean}} [options]
 */
export function openDialog(title, content, { wide = false } = {}) {
  const id = uniqueId("dialog");
  const dialog = h("dialog", { "aria-labelledby": id, class: wide ? "wide" : "" });
  const close = () => dialog.close();
  /** Fields that somebody has typed into. @type {Set<HTMLInputElement>} */
  const typed = new Set();
  const goOn = h("button", { type: "button", onclick: () => (question.hidden = true) }, "Go on editing");
  const question = h("div", { class: "draft", role: "alert", hidden: true }, h("span", {}, "Close, and lose what you typed?"), h("button", { type: "button", class: "danger", onclick: close }, "Lose it"), goOn);
  const leave = (/** @type {Event} */ event) => {
    if (![...typed].some((one) => one.value && one.isConnected)) return event.type === "click" ? close() : undefined;
    event.preventDefault();
    question.hidden = event.type !== "click" && !question.hidden;
    if (!question.hidden) goOn.focus();
  };
  const cross = h("button", { type: "button", class: "quiet cross", "aria-label": "Close", onclick: leave }, "×");
  dialog.append(h("header", {}, h("h2", { id }, title), cross), question, h("div", { class: "dialog-body" }, ...content(close)));
  dialog.addEventListener("input", ({ target }) => {
    const field = /** @type {HTMLInputElement} */ (target);
    if (field.matches("textarea, input:not([type=checkbox], [type=radio], [name=typed])")) typed.add(field);
  });
  dialog.addEventListener("keydown", (event) => event.key === "Escape" && leave(event));
  dialog.addEventListener("cancel", (event) => event.target === dialog && question.hidden && leave(event));
  dialog.addEventListener("close", () => {
    dialog.remove();
    placeToasts();
  });
  document.body.append(dialog);
  dialog.showModal();
  placeToasts();
  return dialog;
}

/** Closes what belongs to a page that is left. */
export function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
}

/**
 * A dialog with a form. It closes when the submission has succeeded.
 *
 * @param {string} title
 * @param {{intro?: Child[], fields: import("./form.js").Field[], submitLabel: string, danger?: boolean, wide?: boolean,
 *   submit: (values: Record<string, any>) => Promise<void>}} settings
 */
export function formDialog(title, { intro = [], fields, submitLabel, danger = false, wide = false, submit }) {
  return openDialog(
    title,
    (close) => [
      ...intro,
      fieldForm({
        fields,
        submitLabel,
        submitKind: danger ? "danger" : "primary",
        submit: async (values) => {
          await submit(values);
          close();
        },
      }),
    ],
    { wide },
  );
}

/**
 * Asks before something that cannot be undone. With `typed`, this name must be typed again.
 *
 * @param {string} title
 * @param {{text: Child, action: string, typed?: string, run: () => Promise<void>}} settings
 */
export function confirmDialog(title, { text, action, typed, run }) {
  /** @type {import("./form.js").Field[]} */
  const fields = typed === undefined ? [] : [{ name: "typed", label: `Type ${typed} to confirm`, required: true }];
  return formDialog(title, {
    intro: [h("p", {}, text)],
    fields,
    submitLabel: action,
    danger: true,
    submit: async ({ typed: given }) => {
      if (typed !== undefined && given !== typed) throw new ApiError(400, "invalid_field", `This is not ${typed}`, "typed");
      await run();
    },
  });
}
