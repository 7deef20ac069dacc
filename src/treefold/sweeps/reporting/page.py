"""A report as one HTML page that needs nothing from outside."""

import html
from typing import Final

from treefold.sweeps.reporting.document import Report
from treefold.sweeps.reporting.tables import NONE, Cell, Table

_LONG: Final = 32  # characters of a name that is shown in several lines
_STYLE: Final = """
:root { --ink: #1f2933; --soft: #52606d; --line: #d9dee4; --paper: #ffffff; --card: #f4f6f8; --good: #00664b; --bad: #a33d00;
  --accent: #0072b2; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaee; --soft: #a9b4bf; --line: #3a4550; --paper: #12171c;
  --card: #1c242c; --good: #4fd1a5; --bad: #ff9e6d; --accent: #6cc0f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: clamp(1.5rem, 4.5vw, 2.2rem); line-height: 1.2; margin: 1rem 0 .75rem; text-wrap: balance; }
h2 { font-size: 1.35rem; margin: 2.75rem 0 .5rem; padding-top: .75rem; border-top: 2px solid var(--accent); }
h3 { font-size: 1.05rem; margin: 0 0 .5rem; }
p, ul { max-width: 46rem; }
nav ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; max-width: none; }
nav a { color: var(--accent); display: inline-block; padding: .35rem 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1.5rem 0;
  max-width: 46rem; }
.facts div { background: var(--card); border-radius: .5rem; padding: .6rem .9rem; }
.facts dt { color: var(--soft); }
.facts dd { margin: 0; font-size: 1.6rem; font-weight: 650; line-height: 1.2; font-variant-numeric: tabular-nums; }
.facts div { display: flex; flex-direction: column-reverse; justify-content: flex-end; }
.verdict { border-left: .3rem solid var(--accent); padding: .25rem 0 .25rem .9rem; font-weight: 600; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; margin: 1rem 0 .75rem; width: fit-content;
  max-width: 100%; }
.scroll:focus-visible { outline: 3px solid var(--accent); }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; line-height: 1.35; }
th, td { padding: .45rem .45rem; text-align: right; white-space: nowrap; vertical-align: top; background: var(--paper); }
thead th, thead td { color: var(--soft); font-weight: 600; background: var(--card); vertical-align: bottom; }
thead th[colspan] { text-align: center; color: var(--ink); }
tbody th { font-weight: 600; }
.lead { text-align: left; }
.long { display: inline-block; white-space: normal; width: 15rem; overflow-wrap: anywhere; }
tbody th .detail { white-space: normal; max-width: 16rem; }
tbody tr > * { border-top: 1px solid var(--line); }
tbody tr:first-child > * { border-top: 2px solid var(--line); }
.start { border-left: 1px solid var(--line); }
.sticky .lead { position: sticky; left: 0; z-index: 1; min-width: 3.5rem; }
.sticky .lead ~ .lead { left: 3.5rem; min-width: 3rem; text-align: right; }
.detail { display: block; color: var(--soft); font-weight: 400; }
.mark { font-weight: 600; }
.reached { color: var(--good); } .missed { color: var(--bad); }
.none { color: var(--soft); text-align: center; }
.notes { color: var(--soft); padding-left: 1.2rem; }
.caution { color: var(--bad); font-weight: 600; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.25rem; }
figure { margin: 0; background: #ffffff; color: #1f2933; border: 1px solid var(--line); border-radius: .5rem; padding: .9rem; }
figure svg { display: block; width: 100%; height: auto; max-width: 38rem; margin: 0 auto; }
@media (max-width: 34rem) { figure { padding: .75rem .4rem; } figure h3, figcaption { padding: 0 .35rem; } }
figcaption { margin-top: .6rem; color: #45525e; }
.versions { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1rem; max-width: 46rem; }
.versions dt { color: var(--soft); } .versions dd { margin: 0; overflow-wrap: anywhere; }
"""


def to_html(report: Report) -> str:
    """Write the report; figures are drawn inside the page."""
    title = html.escape(report.title)
    links = [(table.name, table.title) for table in report.tables]
    links += [("figures", "Figures")] if report.figures else []
    links += [("remarks", "Remarks")] if report.remarks else []
    links += [("versions", "Versions and data")]
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>",
        *[f"<p>{html.escape(paragraph)}</p>" for paragraph in report.introduction],
        f'<dl class="facts">{_pairs(report.facts, boxed=True)}</dl>',
        f'<p class="verdict">{html.escape(report.verdict)}</p>\n</header>',
        '<nav aria-label="Contents"><ul>',
        *[f'<li><a href="#{name}">{html.escape(text)}</a></li>' for name, text in links],
        "</ul></nav>\n<main>",
        *[_table(table) for table in report.tables],
    ]
    if report.figures:
        parts.append('<section id="figures">\n<h2>Figures</h2>\n<div class="figures">')
        parts += [
            f'<figure id="{figure.name}">\n<h3>{html.escape(figure.title)}</h3>\n{figure.inline()}\n'
            f"<figcaption>{html.escape(figure.caption)}</figcaption>\n</figure>"
            for figure in report.figures
        ]
        parts.append("</div>\n</section>")
    if report.remarks:
        remarks = "".join(f"<li>{html.escape(remark)}</li>" for remark in report.remarks)
        parts.append(f'<section id="remarks">\n<h2>Remarks</h2>\n<ul>{remarks}</ul>\n</section>')
    parts.append(
        f'<section id="versions">\n<h2>Versions and data</h2>\n<dl class="versions">{_pairs(report.versions)}</dl>\n</section>'
    )
    return "\n".join([*parts, "</main>\n</body>\n</html>"]) + "\n"


def _pairs(pairs: tuple[tuple[str, str], ...], *, boxed: bool = False) -> str:
    written = [f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in pairs]
    return "".join(f"<div>{pair}</div>" if boxed else pair for pair in written)


def _table(table: Table) -> str:
    head = []
    for row in table.head:
        cells, column = [], 0
        for cell in row:
            scope = f'scope="colgroup" colspan="{cell.span}"' if cell.span > 1 else 'scope="col"'
            tag, scope = ("th", f" {scope}") if cell.text else ("td", "")
            cells.append(f"<{tag}{scope}{_classes(table, column)}>{html.escape(cell.text)}</{tag}>")
            column += cell.span
        head.append(f"<tr>{''.join(cells)}</tr>")
    bodies = []
    for section in table.sections:
        rows = "\n".join(
            f"<tr>{''.join(_cell(cell, column, table) for column, cell in enumerate(row))}</tr>" for row in section
        )
        bodies.append(f"<tbody>\n{rows}\n</tbody>")
    notes = "".join(
        f"<li{' class=caution' if note.startswith('Caution') else ''}>{html.escape(note)}</li>" for note in table.notes
    )
    written = "\n".join(bodies)
    sticky = ' class="sticky"' if table.sticky else ""
    return (
        f'<section id="{table.name}">\n<h2>{html.escape(table.title)}</h2>\n<p>{html.escape(table.caption)}</p>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(table.title)}">\n'
        f"<table{sticky}>\n<thead>\n{''.join(head)}\n</thead>\n{written}\n</table>\n</div>\n"
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
        + "</section>"
    )


def _classes(table: Table, column: int, *more: str) -> str:
    found = [*(["lead"] if column < table.leads else []), *(["start"] if column in table.group_starts else []), *more]
    return f' class="{" ".join(found)}"' if found else ""


def _cell(cell: Cell, column: int, table: Table) -> str:
    attributes = _classes(table, column, *(["none"] if cell.text == NONE else []))
    text = f"<strong>{html.escape(cell.text)}</strong>" if cell.bold else html.escape(cell.text)
    text = f'<span class="long">{text}</span>' if len(cell.text) > _LONG else text
    lines = [html.escape(line) for line in cell.details]
    if cell.points is not None:
        lines.insert(0, f'<span class="mark {cell.verdict}">{cell.comparison()}</span>')
    text += "".join(f'<span class="detail">{line}</span>' for line in lines)
    return f'<th scope="row"{attributes}>{text}</th>' if column < table.leads else f"<td{attributes}>{text}</td>"
