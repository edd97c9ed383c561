/** An address without a page. */

import { emptyState, pageHead } from "../elements/parts.js";
import { h } from "../lib/dom.js";

/** @param {import("../main.js").View} view */
export async function show({ root }) {
  root.append(pageHead("Not found"), emptyState("There is no such page", "The address may be misspelt, or of another version of the console.", h("a", { href: "./", class: "button" }, "Go to the overview")));
}
