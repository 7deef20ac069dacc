"""`python -m treefold.kernels` compiles the fused kernels, which the first use would do otherwise; they are kept on disk."""

import sys
import time

import numpy as np
import torch

from treefold.nn.cells import TreeLSTM
from treefold.nn.encoder import TreeEncoder
from treefold.nn.flat import FlatParameters
from treefold.nn.heads import Classifier, PairClassifier
from treefold.nn.labels import OneHot
from treefold.nn.model import TreeModel
from treefold.trees.forest import Forest


def compile_kernels(dtype: torch.dtype) -> float:
    """Run one small model both ways, which compiles everything that any model needs; return the seconds."""
    start = time.perf_counter()
    encoder = TreeEncoder(
        TreeLSTM("tucker", state_size=2, arity=2, rank=2, label_size=2), OneHot("fa"), backend="fused"
    )
    model = TreeModel(encoder, Classifier(in_size=2, classes=2)).to(dtype)
    model(Forest(["(f a)"])).sum().backward()
    with torch.no_grad():
        model.eval()(Forest(["(f a)"]))
    for head, classes in ((Classifier(in_size=2, classes=2), 2), (PairClassifier(in_size=2, classes=2), 1)):
        model = TreeModel(encoder, head).to(dtype)
        flat = FlatParameters(model, model.arrangements())
        with flat.in_charge():
            model.add_gradients(Forest(["(f a)", "a"]), np.arange(2), np.zeros(classes, np.int64))
        flat.release()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.stdout.write("compiling the fused kernels (once, about a minute) … ")
    sys.stdout.flush()
    seconds = compile_kernels(torch.float32)
    seconds += compile_kernels(torch.float64) if "--double" in sys.argv else 0
    sys.stdout.write(f"{seconds:.0f} s\n")
