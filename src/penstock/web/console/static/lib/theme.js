/** Light, dark, or as the system says; the choice is kept in this browser. */

const NAME = "penstock.theme";
const ORDER = ["system", "light", "dark"];

export function theme() {
  const kept = localStorage.getItem(NAME);
  return kept && ORDER.includes(kept) ? kept : "system";
}

export function applyTheme() {
  document.documentElement.dataset.theme = theme();
}

/** Takes the next theme, and returns it. */
export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length];
  localStorage.setItem(NAME, next);
  applyTheme();
  return next;
}
