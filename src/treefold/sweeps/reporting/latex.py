"""A report as a LaTeX document, its tables ruled by booktabs."""

from typing import Final

from treefold.sweeps.reporting.document import Report
from treefold.sweeps.reporting.tables import Cell, Row, Table

_SPECIAL: Final = {
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
_LAST_LATIN: Final = 0x17F
_PREAMBLE: Final = r"""\documentclass[a4paper]{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage[margin=2cm]{geometry}
\usepackage{amssymb}
\usepackage{booktabs}
\usepackage{caption}
\usepackage{graphicx}
\newcommand{\lines}[2][r]{\begin{tabular}[t]{@{}#1@{}}#2\end{tabular}}
"""


def to_latex(report: Report) -> str:
    """Write the report; the figures are looked for beside it."""
    parts = [f"{_PREAMBLE}\\title{{{escape(report.title)}}}\n\\date{{}}\n\\begin{{document}}\n\\maketitle"]
    parts += [escape(paragraph) for paragraph in report.introduction]
    parts.append(_items([f"{escape(name)}: {escape(value)}" for name, value in report.facts]))
    parts.append(f"\\textbf{{{escape(report.verdict)}}}")
    parts += [_table(table) for table in report.tables]
    parts += [
        f"\\begin{{figure}}[htbp]\n\\centering\n\\includegraphics[width=0.75\\textwidth]{{{figure.name}.png}}\n"
        f"\\caption{{{escape(figure.title)}. {escape(figure.caption)}}}\n\\label{{fig:{figure.name}}}\n\\end{{figure}}"
        for figure in report.figures
    ]
    if report.remarks:
        parts += [r"\section*{Remarks}", _items([escape(remark) for remark in report.remarks])]
    parts += [
        r"\section*{Versions and data}",
        _items([f"{escape(name)}: {escape(value)}" for name, value in report.versions]),
    ]
    return "\n\n".join([*parts, r"\end{document}"]) + "\n"


def escape(text: str) -> str:
    r"""Return text that LaTeX shows as it is; letters that its usual fonts lack are named by their numbers.

    >>> print(escape("50 % of a_b: 木"))
    50 \% of a\_b: \texttt{U+6728}
    """
    return "".join(_SPECIAL.get(letter) or _plain(letter) for letter in " ".join(text.split()))


def _plain(letter: str) -> str:
    return letter if ord(letter) <= _LAST_LATIN else f"\\texttt{{U+{ord(letter):04X}}}"


def _items(items: list[str]) -> str:
    lines = "\n".join(f"\\item {{}}{item}" for item in items)  # the braces: an item may begin with a bracket
    return f"\\begin{{itemize}}\n{lines}\n\\end{{itemize}}"


def _table(table: Table) -> str:
    columns = "l" + "r" * (len(table.head[-1]) - 1)
    lines = [r"\toprule"]
    for place, row in enumerate(table.head):
        lines.append(_row(row, head=True))
        if place < len(table.head) - 1:
            lines.append(" ".join(_rules(row)))
    for section in table.sections:
        lines += [r"\midrule", *[_row(row) for row in section]]
    lines.append(r"\bottomrule")
    body = "\n".join(lines)
    notes = "".join(f"\n\\par\\smallskip\\raggedright\\footnotesize {escape(note)}" for note in table.notes)
    return (
        f"\\begin{{table}}[htbp]\n\\centering\n\\caption*{{{escape(table.title)}. {escape(table.caption)}}}\n"
        f"\\label{{tab:{table.name}}}\n\\resizebox{{\\textwidth}}{{!}}{{%\n"
        f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}\n{body}\n\\end{{tabular}}}}{notes}\n\\end{{table}}"
    )


def _rules(row: Row) -> list[str]:
    rules, start = [], 1
    for cell in row:
        if cell.span > 1:
            rules.append(f"\\cmidrule(lr){{{start}-{start + cell.span - 1}}}")
        start += cell.span
    return rules


def _row(row: Row, *, head: bool = False) -> str:
    return " & ".join(_cell(cell, "r" if place else "l", head=head) for place, cell in enumerate(row)) + r" \\"


def _cell(cell: Cell, side: str, *, head: bool) -> str:
    text = f"\\textbf{{{escape(cell.text)}}}" if cell.bold and cell.text else escape(cell.text)
    below = [line for line in (cell.comparison(), *cell.details) if line]
    if below:
        lines = r"\\[1pt]".join(f"\\scriptsize {escape(line)}" for line in below)
        text = f"\\lines[{side}]{{{text}\\\\[1pt]{lines}}}"
    return f"\\multicolumn{{{cell.span}}}{{c}}{{{text}}}" if head and cell.span > 1 else text
