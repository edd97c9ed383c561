/**
 * Tables that sort, filter and turn pages in the browser. A thousand rows cost as little as fifty, because only one page
 * of them is in the document. New rows keep the order, the page, the filter and the focus.
 *
 * @typedef {import("../lib/dom.js").Child} Child
 */

/**
 * @template R
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: R) => string | number | null | undefined} value by which rows are sorted, and found by the filter
 * @property {(row: R) => Child | Child[]} [cell] what is shown, if that is not the value
 * @property {boolean} [numeric] aligned to the right
 * @property {boolean} [unsorted] its head is no button
 * @property {string} [class]
 */

import { h, nodes } from "../lib/dom.js";
import { count, plural } from "../lib/format.js";

const PAGE_ROWS = 50;

/** @template R */
export class DataTable extends HTMLElement {
  /** @type {Column<R>[]} */
  #columns = [];
  caption = "";
  /** Identifies a row. @type {(row: R) => string} */
  rowKey = (row) => JSON.stringify(row);
  /** Shown instead of an empty table. @type {() => Child} */
  empty = () => h("p", { class: "note" }, "There is nothing here.");
  /** The order of rows with the same value. @type {(one: R, other: R) => number} */
  tie = () => 0;
  filterable = true;
  noun = "row";
  sortColumn = 0;
  descending = false;
  /** @type {R[]} */
  #rows = [];
  #filter = "";
  #page = 0;
  #isBuilt = false;
  /** @type {Map<string, HTMLTableRowElement>} */
  #made = new Map();
  #body = h("tbody");
  #status = h("span", { role: "status" });
  #pager = h("div", { class: "pager" });
  #head = h("tr");
  #nothing = h("div");
  #frame = h("div", { class: "table-frame" });

  /** @returns {Column<R>[]} */
  get columns() {
    return this.#columns;
  }

  set columns(next) {
    const isOther = next.map((one) => one.title).join("\n") !== this.#columns.map((one) => one.title).join("\n");
    this.#columns = next;
    if (!isOther) return;
    this.#made.clear();
    this.#head.replaceChildren();
  }

  /** @returns {R[]} */
  get rows() {
    return this.#rows;
  }

  set rows(next) {
    this.#rows = next;
    if (this.#isBuilt) this.render();
  }

  connectedCallback() {
    if (this.#isBuilt) return;
    this.#isBuilt = true;
    const table = h("table", {}, h("caption", { class: "unseen" }, this.caption), h("thead", {}, this.#head), this.#body);
    this.#frame.append(table);
    this.#frame.tabIndex = 0;
    this.#frame.setAttribute("role", "region");
    this.#frame.setAttribute("aria-label", this.caption);
    this.append(this.makeTools(), this.#frame, this.#nothing, this.#pager);
    this.render();
  }

  makeTools() {
    const input = h("input", { type: "search", placeholder: "Filter", "aria-label": `Filter ${this.caption}`, spellcheck: "false" });
    input.addEventListener("input", () => {
      this.#filter = input.value.trim().toLowerCase();
      this.#page = 0;
      this.render();
    });
    return h("div", { class: "table-tools", hidden: !this.filterable }, input, this.#status);
  }

  render() {
    const found = this.sorted(this.filtered());
    const pages = Math.max(1, Math.ceil(found.length / PAGE_ROWS));
    this.#page = Math.min(this.#page, pages - 1);
    this.renderHead();
    this.renderBody(found.slice(this.#page * PAGE_ROWS, (this.#page + 1) * PAGE_ROWS), found.length);
    this.renderPager(pages);
    const all = plural(this.#rows.length, this.noun);
    this.#status.textContent = found.length === this.#rows.length ? all : `${count(found.length)} of ${all}`;
  }

  filtered() {
    if (!this.#filter) return this.#rows;
    return this.#rows.filter((row) => this.columns.some((column) => String(column.value(row) ?? "").toLowerCase().includes(this.#filter)));
  }

  /** @param {R[]} rows */
  sorted(rows) {
    const column = this.columns[this.sortColumn];
    if (!column || column.unsorted) return rows;
    const sign = this.descending ? -1 : 1;
    return [...rows].sort((one, other) => sign * (compare(column.value(one), column.value(other)) || this.tie(one, other)));
  }

  renderHead() {
    if (this.#head.children.length === this.columns.length) {
      [...this.#head.children].forEach((head, at) => this.markSorted(head, at));
      return;
    }
    this.#head.replaceChildren(
      ...this.columns.map((column, at) => {
        const name = column.unsorted ? column.title : h("button", { type: "button", class: "sort", onclick: () => this.sortBy(at) }, column.title);
        const head = h("th", { scope: "col", class: cellClass(column) }, name);
        this.markSorted(head, at);
        return head;
      }),
    );
  }

  /** @param {Element} head @param {number} at */
  markSorted(head, at) {
    if (at === this.sortColumn && !this.columns[at].unsorted) head.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }

  /** @param {number} at */
  sortBy(at) {
    this.descending = at === this.sortColumn ? !this.descending : this.columns[at].numeric === true;
    this.sortColumn = at;
    this.render();
  }

  /** @param {R[]} rows @param {number} found */
  renderBody(rows, found) {
    const made = new Map();
    const lines = rows.map((row) => {
      const key = this.rowKey(row);
      const line = this.#made.get(key) ?? h("tr", {}, ...this.columns.map((column) => h("td", { class: cellClass(column), "data-title": column.title })));
      this.columns.forEach((column, at) => fillCell(line.cells[at], column.cell ? column.cell(row) : column.value(row)));
      made.set(key, line);
      return line;
    });
    this.#made = made;
    if (!sameOrder(this.#body, lines)) this.#body.replaceChildren(...lines);
    const isEmpty = this.#rows.length === 0;
    this.classList.toggle("is-empty", isEmpty);
    this.#nothing.replaceChildren(...nodes([isEmpty ? this.empty() : found === 0 ? h("p", { class: "note" }, "No row has this text.") : null]));
  }

  /** @param {number} pages */
  renderPager(pages) {
    this.#pager.hidden = pages < 2;
    if (pages < 2) return;
    const turn = (/** @type {number} */ by) => () => {
      this.#page += by;
      this.render();
    };
    this.#pager.replaceChildren(
      h("button", { type: "button", disabled: this.#page === 0, onclick: turn(-1) }, "Previous"),
      h("span", {}, `Page ${count(this.#page + 1)} of ${count(pages)}`),
      h("button", { type: "button", disabled: this.#page === pages - 1, onclick: turn(1) }, "Next"),
    );
  }
}
customElements.define("data-table", DataTable);

/**
 * @template R
 * @param {Partial<DataTable<R>>} settings
 * @returns {DataTable<R>}
 */
export function dataTable(settings) {
  const made = /** @type {DataTable<R>} */ (document.createElement("data-table"));
  return Object.assign(made, settings);
}

/** @param {Column<any>} column */
function cellClass(column) {
  return [column.numeric ? "number" : "", column.class ?? ""].join(" ").trim() || null;
}

/** @param {Element} cell @param {Child | Child[]} content */
function fillCell(cell, content) {
  const fresh = nodes([content ?? "–"]);
  const old = [...cell.childNodes];
  const isSame = old.length === fresh.length && old.every((node, at) => same(node, fresh[at]));
  if (!isSame) cell.replaceChildren(...fresh);
}

/** @param {Node} old @param {Node | string} fresh */
function same(old, fresh) {
  if (typeof fresh === "string") return old.nodeType === Node.TEXT_NODE && old.textContent === fresh;
  return old.isEqualNode(fresh);
}

/** @param {Element} parent @param {Element[]} children */
function sameOrder(parent, children) {
  return parent.children.length === children.length && children.every((child, at) => parent.children[at] === child);
}

/** @param {unknown} one @param {unknown} other */
function compare(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined) return 1;
  if (other === null || other === undefined) return -1;
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}
