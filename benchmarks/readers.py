"""How fast files are read as trees: python benchmarks/readers.py

Reads the modules of the standard library as Python (ast) and, if the extra is installed, with tree-sitter. Nodes a second of
processor time, best of three.
"""

import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from treefold import Tree
from treefold.data.readers import read_code, read_python
from treefold.errors import ConfigurationError


def nodes_per_second(read: Callable[[Path], Iterator[Tree]], files: list[Path]) -> tuple[int, float]:
    best = 0.0
    nodes = 0
    for _ in range(3):
        start, nodes = time.process_time(), 0
        for path in files:
            nodes += sum(tree.size for tree in read(path))
        best = max(best, nodes / (time.process_time() - start))
    return nodes, best


def main() -> None:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    for name, read in {"python (ast)": read_python, "code (tree-sitter)": read_code}.items():
        try:
            nodes, speed = nodes_per_second(read, files)
        except ConfigurationError as missing:
            print(f"{name}: {missing}")
            continue
        print(f"{name}: {len(files)} files, {nodes:,} nodes, {speed:,.0f} nodes/s, parsing included")


if __name__ == "__main__":
    main()
