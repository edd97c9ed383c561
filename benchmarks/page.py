"""Puts a benchmark's tables into docs/benchmarks.md, between the markers of that benchmark, and draws the plots."""

import plots


def publish(name: str, text: str) -> None:
    page = plots.PAGE.read_text()
    opening, closing = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = page.partition(opening)
    _, ended, after = rest.partition(closing)
    if not (found and ended):
        raise SystemExit(f"{plots.PAGE.name} has no section {opening.strip()} ... {closing}")
    plots.PAGE.write_text(f"{before}{opening}{text.rstrip()}\n{closing}{after}")
    plots.draw()
