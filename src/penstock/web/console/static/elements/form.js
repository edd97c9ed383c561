/**
 * Forms: labels, help beside each field, and the API's refusals at the field that they are about.
 *
 * @typedef {{name: string, label: string, type?: "text" | "number" | "password" | "textarea" | "select" | "checkbox"
 *   | "datetime-local" | "file", value?: string | number | boolean, help?: import("../lib/dom.js").Child,
 *   required?: boolean, placeholder?: string, options?: [string, string][], min?: number, max?: number, step?: string,
 *   autocomplete?: string, rows?: number, pattern?: string, onlyFor?: [string, string], mayBeEmpty?: boolean}} Field
 *   `onlyFor`: another field and its value with which this one is asked for; `mayBeEmpty`: an empty text is a value, too
 */

import { ApiError } from "../lib/api.js";
import { h, uniqueId } from "../lib/dom.js";
import { explain } from "./parts.js";

/** A form whose submission is one request; it shows what is wrong, and cannot be sent twice at once. */
export class FieldForm extends HTMLElement {
  /** @type {Field[]} */
  fields = [];
  submitLabel = "Save";
  /** @type {"primary" | "danger"} */
  submitKind = "primary";
  /** @type {(values: Record<string, any>) => Promise<void>} */
  submit = async () => {};

  connectedCallback() {
    if (this.firstChild) return;
    this.append(this.makeForm());
  }

  makeForm() {
    const send = h("button", { type: "submit", class: this.submitKind }, this.submitLabel);
    const error = h("div", { class: "form-error", role: "alert" });
    const rows = this.fields.map(fieldRow);
    const form = h("form", { novalidate: true }, ...rows, error, h("div", { class: "actions" }, send));
    const choose = () => this.fields.forEach(({ onlyFor }, at) => (rows[at].hidden = onlyFor !== undefined && /** @type {HTMLInputElement} */ (form.elements.namedItem(onlyFor[0])).value !== onlyFor[1]));
    choose();
    form.addEventListener("input", (event) => (choose(), unmark(/** @type {HTMLElement} */ (event.target))));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      clear(form, error);
      if (!form.checkValidity()) return tellInvalid(form);
      send.disabled = true;
      try {
        await this.submit(valuesOf(form, this.fields));
      } catch (trouble) {
        this.tell(form, error, trouble);
      } finally {
        send.disabled = false;
      }
    });
    return form;
  }

  /** @param {HTMLFormElement} form @param {HTMLElement} error @param {unknown} trouble */
  tell(form, error, trouble) {
    const named = trouble instanceof ApiError ? trouble.field?.split(/[.[]/)[0] : null;
    const input = named ? form.elements.namedItem(named) : null;
    if (input instanceof HTMLElement) {
      mark(input, trouble instanceof Error ? trouble.message : String(trouble));
      input.focus();
      return;
    }
    const { title, message } = explain(trouble);
    error.textContent = `${title}: ${message}`;
  }

  /** The input of a field. @param {string} name @returns {any} */
  input(name) {
    return this.querySelector("form")?.elements.namedItem(name);
  }
}
customElements.define("field-form", FieldForm);

/** @param {Partial<FieldForm>} settings */
export function fieldForm(settings) {
  const made = /** @type {FieldForm} */ (document.createElement("field-form"));
  return Object.assign(made, settings);
}

/** @param {Field} field */
function fieldRow(field) {
  const id = uniqueId("field");
  const helpId = `${id}-help`;
  const input = inputOf(field, id, `${helpId} ${id}-error`);
  const isCheck = field.type === "checkbox";
  const isChosen = isCheck || field.options?.every(([value]) => value); // there is always a value
  const label = h("label", { for: id }, field.label, field.required || isChosen || field.mayBeEmpty ? null : h("span", { class: "optional" }, " optional"));
  return h(
    "div",
    { class: isCheck ? "field check" : "field" },
    isCheck ? [input, label] : [label, input],
    h("div", { class: "help", id: helpId }, field.help ?? null),
    h("div", { class: "field-error", id: `${id}-error` }),
  );
}

/** @param {Field} field @param {string} id @param {string} described */
function inputOf(field, id, described) {
  const shared = { id, name: field.name, required: field.required, "aria-describedby": described };
  if (field.type === "textarea") return withValue(h("textarea", { ...shared, rows: field.rows ?? 5, placeholder: field.placeholder, spellcheck: "false" }), field.value);
  if (field.type === "select") {
    const options = (field.options ?? []).map(([value, title]) => h("option", { value, selected: value === String(field.value ?? "") }, title));
    return h("select", shared, ...options);
  }
  const more = { min: field.min, max: field.max, placeholder: field.placeholder, pattern: field.pattern, step: field.step ?? (field.type === "datetime-local" ? "1" : null) };
  const input = h("input", { ...shared, ...more, type: field.type ?? "text", autocomplete: field.autocomplete ?? "off", spellcheck: "false" });
  if (field.type === "checkbox") input.checked = field.value === true;
  else withValue(input, field.value);
  return input;
}

/** @template {HTMLInputElement | HTMLTextAreaElement} T @param {T} input @param {unknown} value @returns {T} */
function withValue(input, value) {
  if (value !== undefined && value !== null) input.value = String(value);
  return input;
}

/** @param {HTMLFormElement} form @param {Field[]} fields */
function valuesOf(form, fields) {
  /** @type {Record<string, any>} */
  const values = {};
  for (const field of fields) {
    const input = /** @type {HTMLInputElement} */ (form.elements.namedItem(field.name));
    if (field.type === "checkbox") values[field.name] = input.checked;
    else if (field.type === "file") values[field.name] = input.files?.[0] ?? null;
    else if (field.type === "number") values[field.name] = input.value === "" ? null : Number(input.value);
    else values[field.name] = input.value;
  }
  return values;
}

/** @param {HTMLElement} input @param {string} message */
function mark(input, message) {
  input.setAttribute("aria-invalid", "true");
  const error = document.getElementById(`${input.id}-error`);
  if (error) error.textContent = message;
}

/** What was wrong is being corrected. @param {HTMLElement} input */
function unmark(input) {
  input.removeAttribute("aria-invalid");
  const error = document.getElementById(`${input.id}-error`);
  if (error) error.textContent = "";
}

/** @param {HTMLFormElement} form @param {HTMLElement} error */
function clear(form, error) {
  error.textContent = "";
  for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  for (const told of form.querySelectorAll(".field-error")) told.textContent = "";
}

/** @param {HTMLFormElement} form */
function tellInvalid(form) {
  const wrong = /** @type {HTMLInputElement[]} */ ([...form.querySelectorAll(":invalid")]);
  for (const input of wrong) mark(input, input.validationMessage);
  wrong[0]?.focus();
}
