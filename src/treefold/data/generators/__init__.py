"""Data sets that are generated, or read from the files of their authors: ListOps (`listops`) and LRT (`lrt`).

`make_listops` and `make_lrt` generate a `Dataset`, `load_listops` and `load_lrt` read the original files; the modules also have
the trees and pairs themselves, one at a time. `common` has the random numbers, splits and line reading that they share.
"""

from treefold.data.generators.listops import load_listops, make_listops
from treefold.data.generators.lrt import load_lrt, make_lrt

__all__ = ["load_listops", "load_lrt", "make_listops", "make_lrt"]
