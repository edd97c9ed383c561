/**
 * Builds elements. Text always becomes a text node: no function here, and none that uses these, takes HTML, so a message
 * whose value is a script is shown as its text.
 *
 * @typedef {Node | string | number | boolean | null | undefined} Child
 * @typedef {string | number | boolean | null | undefined | ((event: any) => void)} Attribute
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element: h("a", {href: "topics", class: "quiet", onclick: act}, "Topics"). Attributes that are null or false are
 * left out, true gives an empty one, and functions listen to the event that they are named by.
 *
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, Attribute>} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  fill(made, attributes, children);
  return made;
}

/**
 * The same for SVG.
 *
 * @param {string} tag
 * @param {Record<string, Attribute>} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes = {}, ...children) {
  const made = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  fill(made, attributes, children);
  return made;
}

/**
 * @param {Element} made
 * @param {Record<string, Attribute>} attributes
 * @param {(Child | Child[])[]} children
 */
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, String(value));
  }
  made.append(...nodes(children));
}

/**
 * @param {(Child | Child[])[]} children
 * @returns {(Node | string)[]}
 */
export function nodes(children) {
  return children
    .flat()
    .filter((child) => child !== null && child !== undefined && child !== false && child !== true)
    .map((child) => (child instanceof Node ? child : String(child)));
}

/**
 * Replaces the children of an element, unless they are the same: a live page must not lose the reader's selection.
 *
 * @param {Element} parent
 * @param {...(Child | Child[])} children
 */
export function show(parent, ...children) {
  const made = document.createElement("div");
  made.append(...nodes(children));
  const old = [...parent.childNodes];
  const fresh = [...made.childNodes];
  if (old.length === fresh.length && old.every((node, at) => node.isEqualNode(fresh[at]))) return;
  parent.replaceChildren(...fresh);
}

let counted = 0;

/** An id that no other element has, for labels. @param {string} word */
export function uniqueId(word) {
  counted += 1;
  return `${word}-${counted}`;
}
