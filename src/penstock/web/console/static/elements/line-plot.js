/**
 * A plot of some lines over time, as SVG. Its label tells the last values to a screen reader; a pointer, or the arrow keys,
 * read older ones.
 *
 * @typedef {{name: string, values: (number | null)[]}} Series
 */

import { h, svg } from "../lib/dom.js";
import { compact, duration, timeOfDay } from "../lib/format.js";

const WIDTH = 600;
const HEIGHT = 150;
const LEFT = 4;
const TOP = 8;
const BOTTOM = 4;
const LONGEST_MS = 15 * 60 * 1000;
const SHORTEST_MS = 60 * 1000;

export class LinePlot extends HTMLElement {
  plotTitle = "";
  /** @type {(value: number) => string} */
  unit = compact;
  /** The distance of two times; a longer one is a gap. */
  intervalMs = 5000;
  /** @type {number[]} */
  #times = [];
  /** @type {Series[]} */
  #series = [];
  /** @type {number | null} */
  #at = null;
  #legend = h("div", { class: "legend" });
  #canvas = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", tabindex: 0 });
  #scale = h("div", { class: "scale", "aria-hidden": "true" });
  #axis = h("div", { class: "axis", "aria-hidden": "true" });

  connectedCallback() {
    if (this.firstChild) return;
    this.append(h("div", { class: "plot-title" }, this.plotTitle), this.#legend, h("div", { class: "plot-area" }, this.#scale, this.#canvas), this.#axis);
    this.#canvas.addEventListener("pointermove", (event) => this.point(/** @type {PointerEvent} */ (event)));
    this.#canvas.addEventListener("pointerleave", () => this.read(null));
    this.#canvas.addEventListener("blur", () => this.read(null));
    this.#canvas.addEventListener("keydown", (event) => this.key(/** @type {KeyboardEvent} */ (event)));
    this.draw();
  }

  /** @param {number[]} times milliseconds since 1970, ascending @param {Series[]} series */
  setData(times, series) {
    this.#times = times;
    this.#series = series;
    if (this.isConnected) this.draw();
  }

  get end() {
    return this.#times.at(-1) ?? Date.now();
  }

  /** As long as there are values: a node that has just started fills the plot, too. */
  get spanMs() {
    return Math.min(LONGEST_MS, Math.max(SHORTEST_MS, this.end - (this.#times[0] ?? this.end)));
  }

  get largest() {
    const values = this.#series.flatMap((one) => one.values).filter((value) => value !== null);
    return niceLimit(Math.max(0, .../** @type {number[]} */ (values)));
  }

  /** The number at half height, unless it would be the one above or below. */
  get middle() {
    const shown = this.unit(this.largest / 2);
    return shown === this.unit(this.largest) || shown === this.unit(0) ? "" : shown;
  }

  /** @param {number} time */
  x(time) {
    return LEFT + ((time - (this.end - this.spanMs)) / this.spanMs) * (WIDTH - 2 * LEFT);
  }

  /** @param {number} value */
  y(value) {
    return HEIGHT - BOTTOM - (value / this.largest) * (HEIGHT - TOP - BOTTOM);
  }

  draw() {
    const lines = this.#series.map((one, at) => svg("path", { class: `line series-${at + 1}`, d: this.line(one.values) }));
    const grid = [0, 0.5, 1].map((part) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: this.y(part * this.largest), y2: this.y(part * this.largest) }));
    const mark = this.#at === null ? [] : [svg("line", { class: "mark", x1: this.x(this.#times[this.#at]), x2: this.x(this.#times[this.#at]), y1: 0, y2: HEIGHT })];
    this.#canvas.replaceChildren(...grid, ...lines, ...mark);
    this.#canvas.setAttribute("aria-label", this.summary());
    this.#scale.replaceChildren(h("span", {}, this.unit(this.largest)), h("span", {}, this.middle), h("span", {}, this.unit(0)));
    this.#axis.replaceChildren(h("span", {}, timeOfDay(this.end - this.spanMs)), ...this.cursor(), h("span", {}, timeOfDay(this.end)));
    this.drawLegend();
  }

  /** The time that is read, below its point. */
  cursor() {
    if (this.#at === null) return [];
    const made = h("span", { class: "cursor" }, timeOfDay(this.#times[this.#at]));
    const part = Math.min(0.95, Math.max(0.05, this.x(this.#times[this.#at]) / WIDTH));
    made.style.left = `calc(3.75rem + (100% - 3.75rem) * ${part})`;
    return [made];
  }

  drawLegend() {
    const rows = this.#series.map((one, at) => {
      const value = one.values[this.#at ?? one.values.length - 1];
      return h("span", { class: "legend-row" }, h("span", { class: `swatch series-${at + 1}` }), `${one.name} `, h("b", {}, value === null || value === undefined ? "–" : this.unit(value)));
    });
    this.#legend.replaceChildren(...(this.#times.length ? rows : ["The first values come in seconds."]));
  }

  /** The path of a line, with gaps where values are missing. @param {(number | null)[]} values */
  line(values) {
    let made = "";
    let last = -Infinity;
    values.forEach((value, at) => {
      const time = this.#times[at];
      if (value === null || time < this.end - this.spanMs) return;
      made += `${time - last > 2.5 * this.intervalMs ? "M" : "L"}${this.x(time).toFixed(1)} ${this.y(value).toFixed(1)}`;
      last = time;
    });
    return made;
  }

  summary() {
    if (!this.#times.length) return `${this.plotTitle}: no values yet`;
    const told = this.#series.map((one) => `${one.name} ${this.unit(one.values.at(-1) ?? 0)}`);
    return `${this.plotTitle}, last ${duration(this.spanMs)}. Now: ${told.join(", ")}`;
  }

  /** @param {PointerEvent} event */
  point(event) {
    const box = this.#canvas.getBoundingClientRect();
    const time = this.end - this.spanMs + ((event.clientX - box.left) / box.width) * this.spanMs;
    const distances = this.#times.map((one) => Math.abs(one - time));
    this.read(distances.length ? distances.indexOf(Math.min(...distances)) : null);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.#times.length) return;
    event.preventDefault();
    const at = this.#at ?? this.#times.length - 1;
    this.read(Math.min(this.#times.length - 1, Math.max(0, at + step)));
  }

  /** @param {number | null} at */
  read(at) {
    if (at === this.#at) return;
    this.#at = at;
    this.draw();
  }
}
customElements.define("line-plot", LinePlot);

/** @param {string} plotTitle @param {(value: number) => string} [unit] */
export function linePlot(plotTitle, unit = compact) {
  const made = /** @type {LinePlot} */ (document.createElement("line-plot"));
  return Object.assign(made, { plotTitle, unit });
}

/** The next of 1, 2, 5, 10, 20, ... @param {number} value */
function niceLimit(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const found = [1, 2, 5, 10].find((step) => step * power >= value * 1.02) ?? 10;
  return found * power;
}
