"""A report as Markdown, LaTeX and HTML."""

import html
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from treefold.sweeps.report.summary import NONE, Cell, Row, Table
from treefold.trees.drawing import escaped
from treefold.trees.tree import printable

if TYPE_CHECKING:
    from treefold.sweeps.report.document import Best, Document

_LONG: Final = 32  # characters of a name that is shown in several lines of the page
_PAGE_STYLE: Final = Path(__file__).with_name("page.css")
GENERATOR: Final = '<meta name="generator" content="treefold">'
_NEXT: Final = "What to try next"
_TRAIN: Final = "All its settings are in {}, beside this report. This command trains it, given the path of that file:"
_EVALUATE: Final = "These results have no confusion matrix. This command shows it:"
_LAST_LATIN: Final = 0x17F
_LATEX_SPECIAL: Final = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "−": "$-$",
    "✓": r"\checkmark{}",
    "✗": r"$\times$",
    "≥": r"$\geq$",
    "²": r"\textsuperscript{2}",
    "“": "``",
    "”": "''",
    "…": r"\dots{}",
}
_LATEX_PREAMBLE: Final = r"""\documentclass[a4paper]{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage[margin=2cm]{geometry}
\usepackage{amssymb}
\usepackage{booktabs}
\usepackage{caption}
\usepackage{graphicx}
\newcommand{\lines}[2][r]{\begin{tabular}[t]{@{}#1@{}}#2\end{tabular}}
"""


def to_markdown(document: "Document") -> str:
    """Write the document as Markdown; the figures are files next to it."""
    parts = [f"# {_md(document.title)}", *map(_md, document.introduction)]
    parts += [_md_items(map(": ".join, document.facts)), f"**{_md(document.conclusion)}**"]
    for each in document.bests:
        parts += [
            f"## {_md(best_title(each, document))}",
            f"{_md(each.words)}.",
            _md_items(map(" = ".join, each.settings)),
        ]
        parts += [_TRAIN.format(_md(each.file)), f"    {each.command}"]
        parts += [_EVALUATE, f"    {each.evaluate}"] if each.evaluate else []
    for table in document.tables:
        parts += [f"## {_md(table.title)}", _md(table.caption), _md_table(table)]
        parts += [_md_items(table.notes)] if table.notes else []
    parts += ["## Figures"] if document.figures else []
    for figure in document.figures:
        parts += [f"### {_md(figure.title)}", f"![{_md(figure.description)}]({figure.name}.png)", _md(figure.caption)]
    parts += [f"## {_NEXT}", _md_items(document.steps)] if document.steps else []
    parts += ["## Remarks", _md_items(document.remarks)] if document.remarks else []
    parts += ["## Versions and data", _md_items(map(": ".join, document.versions))]
    return "\n\n".join(parts) + "\n"


def _md(text: str) -> str:
    r"""Escape text for Markdown.

    >>> print(_md("a|b_c"))
    a\|b\_c
    """
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", printable(" ".join(text.split())))


def _md_items(items: Iterable[str]) -> str:
    return "\n".join(f"- {_md(item)}" for item in items)


def _md_table(table: Table) -> str:
    names = [_md(cell.text) for cell in table.head[-1]]
    if len(table.head) == 2:  # Markdown has one header row
        over = [cell.text for cell in table.head[0] for _ in range(cell.span)]
        names = [f"{_md(upper)}<br>{name}" if upper else name for upper, name in zip(over, names, strict=True)]
    rows = [names, ["---", *["--:"] * (len(names) - 1)], *[list(map(_md_cell, row)) for row in table.rows]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _md_cell(cell: Cell) -> str:
    text = f"**{_md(cell.text)}**" if cell.bold and cell.text else _md(cell.text)
    text += f" {cell.comparison()}" if cell.comparison() else ""
    return text + (f"<br>{_md(', '.join(cell.details))}" if cell.details else "")


def to_latex(document: "Document") -> str:
    """Write the document as LaTeX, with booktabs; the figures are files next to it."""
    parts = [f"{_LATEX_PREAMBLE}\\title{{{_tex(document.title)}}}\n\\date{{}}\n\\begin{{document}}\n\\maketitle"]
    parts += [_tex(paragraph) for paragraph in document.introduction]
    parts += [_tex_items(map(": ".join, document.facts)), f"\\textbf{{{_tex(document.conclusion)}}}"]
    for each in document.bests:
        parts += [f"\\section*{{{_tex(best_title(each, document))}}}", f"{_tex(each.words)}."]
        parts += [_tex_items(map(" = ".join, each.settings)), _TRAIN.format(_tex(each.file))]
        parts += [f"\\texttt{{{_tex(each.command)}}}"]
        parts += [_EVALUATE, f"\\texttt{{{_tex(each.evaluate)}}}"] if each.evaluate else []
    parts += [_tex_table(table) for table in document.tables]
    parts += [
        f"\\begin{{figure}}[htbp]\n\\centering\n\\includegraphics[width=0.75\\textwidth]{{{figure.name}.png}}\n"
        f"\\caption{{{_tex(figure.title)}. {_tex(figure.caption)}}}\n\\label{{fig:{figure.name}}}\n\\end{{figure}}"
        for figure in document.figures
    ]
    parts += [f"\\section*{{{_NEXT}}}", _tex_items(document.steps)] if document.steps else []
    parts += [r"\section*{Remarks}", _tex_items(document.remarks)] if document.remarks else []
    parts += [r"\section*{Versions and data}", _tex_items(map(": ".join, document.versions))]
    return "\n\n".join([*parts, r"\end{document}"]) + "\n"


def _tex(text: str) -> str:
    r"""Escape text for LaTeX; letters that its usual fonts lack become their code points.

    >>> print(_tex("50 % of a_b: 木"))
    50 \% of a\_b: \texttt{U+6728}
    """
    return "".join(
        _LATEX_SPECIAL.get(letter)
        or (letter if letter.isprintable() and ord(letter) <= _LAST_LATIN else f"\\texttt{{U+{ord(letter):04X}}}")
        for letter in " ".join(text.split())
    )


def _tex_items(items: Iterable[str]) -> str:
    lines = "\n".join(f"\\item {{}}{_tex(item)}" for item in items)  # the braces: an item may begin with a bracket
    return f"\\begin{{itemize}}\n{lines}\n\\end{{itemize}}"


def _tex_table(table: Table) -> str:
    columns = "l" + "r" * (len(table.head[-1]) - 1)
    lines = [r"\toprule"]
    for place, row in enumerate(table.head):
        lines.append(_tex_row(row, head=True))
        if place < len(table.head) - 1:
            lines.append(" ".join(_tex_rules(row)))
    for section in table.sections:
        lines += [r"\midrule", *[_tex_row(row) for row in section]]
    body = "\n".join([*lines, r"\bottomrule"])
    notes = "".join(f"\n\\par\\smallskip\\raggedright\\footnotesize {_tex(note)}" for note in table.notes)
    return (
        f"\\begin{{table}}[htbp]\n\\centering\n\\caption*{{{_tex(table.title)}. {_tex(table.caption)}}}\n"
        f"\\label{{tab:{table.name}}}\n\\resizebox{{\\textwidth}}{{!}}{{%\n"
        f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}\n{body}\n\\end{{tabular}}}}{notes}\n\\end{{table}}"
    )


def _tex_rules(row: Row) -> list[str]:
    rules, start = [], 1
    for cell in row:
        if cell.span > 1:
            rules.append(f"\\cmidrule(lr){{{start}-{start + cell.span - 1}}}")
        start += cell.span
    return rules


def _tex_row(row: Row, *, head: bool = False) -> str:
    return " & ".join(_tex_cell(cell, "r" if place else "l", head=head) for place, cell in enumerate(row)) + r" \\"


def _tex_cell(cell: Cell, side: str, *, head: bool) -> str:
    text = f"\\textbf{{{_tex(cell.text)}}}" if cell.bold and cell.text else _tex(cell.text)
    below = [line for line in (cell.comparison(), *cell.details) if line]
    if below:
        lines = r"\\[1pt]".join(f"\\scriptsize {_tex(line)}" for line in below)
        text = f"\\lines[{side}]{{{text}\\\\[1pt]{lines}}}"
    return f"\\multicolumn{{{cell.span}}}{{c}}{{{text}}}" if head and cell.span > 1 else text


def to_html(document: "Document") -> str:
    """Write the document as one HTML page that contains its figures and style."""
    title = escaped(document.title)
    links = [("best", "Best configuration")] if document.bests else []
    links += [(table.name, table.title) for table in document.tables]
    links += [("figures", "Figures")] if document.figures else []
    links += [("next", _NEXT)] if document.steps else []
    links += [("remarks", "Remarks")] if document.remarks else []
    links += [("versions", "Versions and data")]
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        GENERATOR,
        f"<title>{title}</title>\n<style>\n{_PAGE_STYLE.read_text(encoding='utf-8')}</style>\n</head>",
        f"<body>\n<header>\n<h1>{title}</h1>",
        *[f"<p>{escaped(paragraph)}</p>" for paragraph in document.introduction],
        f'<dl class="facts">{"".join(f"<div>{_html_pair(pair)}</div>" for pair in document.facts)}</dl>',
        f'<p class="verdict">{escaped(document.conclusion)}</p>\n</header>',
        '<nav aria-label="Contents"><ul>',
        *[f'<li><a href="#{name}">{escaped(text)}</a></li>' for name, text in links],
        "</ul></nav>\n<main>",
        *(
            [f'<div id="best">{"".join(_html_best(each, document) for each in document.bests)}</div>']
            if document.bests
            else []
        ),
        *[_html_table(table) for table in document.tables],
    ]
    if document.figures:
        parts.append('<section id="figures">\n<h2>Figures</h2>\n<div class="figures">')
        parts += [
            f'<figure id="{figure.name}">\n<h3>{escaped(figure.title)}</h3>\n{figure.inline()}\n'
            f"<figcaption>{escaped(figure.caption)}</figcaption>\n</figure>"
            for figure in document.figures
        ]
        parts.append("</div>\n</section>")
    for name, heading, items in (("next", _NEXT, document.steps), ("remarks", "Remarks", document.remarks)):
        if items:
            listed = "".join(f"<li>{escaped(item)}</li>" for item in items)
            parts.append(f'<section id="{name}">\n<h2>{heading}</h2>\n<ul>{listed}</ul>\n</section>')
    versions = "".join(map(_html_pair, document.versions))
    parts.append(
        f'<section id="versions">\n<h2>Versions and data</h2>\n<dl class="versions">{versions}</dl>\n</section>'
    )
    return "\n".join([*parts, "</main>\n</body>\n</html>"]) + "\n"


def best_title(found: "Best", document: "Document") -> str:
    """Return the heading above the best configuration, with the grid's name if there are several."""
    return "Best configuration" if len(document.bests) == 1 else f"Best configuration of {found.title}"


def _html_best(found: "Best", document: "Document") -> str:
    pairs = "".join(f"<div>{_html_pair(pair)}</div>" for pair in found.settings)
    more = f"\n<p>{_EVALUATE}</p>\n<pre>{escaped(found.evaluate)}</pre>" if found.evaluate else ""
    return (
        f"<section>\n<h2>{escaped(best_title(found, document))}</h2>\n<p>{escaped(found.words)}.</p>\n"
        + (f'<dl class="settings">{pairs}</dl>\n' if pairs else "")
        + f"<p>{_TRAIN.format(f'<code>{escaped(found.file)}</code>')}</p>\n<pre>{escaped(found.command)}</pre>\n"
        + f"<details><summary>All settings</summary><pre>{html.escape(found.toml)}</pre></details>{more}\n</section>"
    )


def _html_pair(pair: tuple[str, str]) -> str:
    return f"<dt>{escaped(pair[0])}</dt><dd>{escaped(pair[1])}</dd>"


def _html_table(table: Table) -> str:
    head = []
    for row in table.head:
        cells, column = [], 0
        for cell in row:
            scope = f'scope="colgroup" colspan="{cell.span}"' if cell.span > 1 else 'scope="col"'
            tag, scope = ("th", f" {scope}") if cell.text else ("td", "")
            cells.append(f"<{tag}{scope}{_html_classes(table, column)}>{escaped(cell.text)}</{tag}>")
            column += cell.span
        head.append(f"<tr>{''.join(cells)}</tr>")
    bodies = []
    for section in table.sections:
        rows = [
            f"<tr>{''.join(_html_cell(cell, column, table) for column, cell in enumerate(row))}</tr>" for row in section
        ]
        bodies.append("\n".join(["<tbody>", *rows, "</tbody>"]))
    notes = "".join(
        f"<li{' class=caution' if note.startswith('Caution') else ''}>{escaped(note)}</li>" for note in table.notes
    )
    title, sticky, body = escaped(table.title), ' class="sticky"' if table.sticky else "", "\n".join(bodies)
    return (
        f'<section id="{table.name}">\n<h2>{title}</h2>\n<p>{escaped(table.caption)}</p>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">\n'
        f"<table{sticky}>\n<thead>\n{''.join(head)}\n</thead>\n{body}\n</table>\n</div>\n"
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
        + "</section>"
    )


def _html_classes(table: Table, column: int, *more: str) -> str:
    found = [*(["lead"] if column < table.leads else []), *(["start"] if column in table.group_starts else []), *more]
    return f' class="{" ".join(found)}"' if found else ""


def _html_cell(cell: Cell, column: int, table: Table) -> str:
    attributes = _html_classes(table, column, *(["none"] if cell.text == NONE else []))
    text = f"<strong>{escaped(cell.text)}</strong>" if cell.bold else escaped(cell.text)
    text = f'<span class="long">{text}</span>' if len(cell.text) > _LONG else text
    lines = [escaped(line) for line in cell.details]
    if cell.points is not None:
        lines.insert(0, f'<span class="mark {cell.verdict}">{cell.comparison()}</span>')
    text += "".join(f'<span class="detail">{line}</span>' for line in lines)
    return f'<th scope="row"{attributes}>{text}</th>' if column < table.leads else f"<td{attributes}>{text}</td>"
