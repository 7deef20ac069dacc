"""Attack on the readers: changed, random and deeply nested files of every format."""

import functools
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.attack.case import DEEP, Target, mutated, packed, require, unpacked
from treefold.data.dataset import Dataset
from treefold.data.readers import READERS
from treefold.data.sick import load_sick
from treefold.data.vectors import read_vectors
from treefold.errors import ReadError
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree

_CONLLU: Final = (
    "# sent_id = 1\n1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\n2\tdog\tdog\tNOUN\tNN\t_\t3\tnsubj\t_\t_\n3\tbarks\tbark\tVERB\t_\t_\t0\troot\t_\t_\n\n"
    "1-2\tzum\t_\t_\t_\t_\t_\t_\t_\t_\n1\tzu\tzu\tADP\t_\tCase=Dat\t0\troot\t_\t_\n2\tdem\tder\tDET\t_\t_\t1\tdet\t_\t_\n"
)
_XML: Final = '<?xml version="1.0"?>\n<!DOCTYPE a [<!ENTITY e "x">]>\n<a b="1" xmlns:n="u"><n:c d="é">t&amp;&e;</n:c><!-- c --><![CDATA[x]]><e/></a>\n'
SAMPLES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "sexpr": ((".sexpr", '(f a (g "b c" _) (h))\n(x y)\n'), (".txt", "(and (or a b) (not c))")),
    "penn": ((".mrg", "( (S (NP-SBJ (DT The) (NN dog)) (VP (VBZ barks)) (. .)) )\n"), (".penn", "(S (NP a)\n (VP é))\n")),
    "sst": ((".sst", "(3 (2 (2 The) (2 film)) (4 (2 is) (4 good)))\n(1 bad)\n"),),
    "json": ((".json", '{"a": [1, -2.5e3, null, true, "x y"], "b": {"c": "\\u00e9"}}\n'),),
    "jsonl": ((".jsonl", '{"tree": "(f a b)", "label": "yes"}\n{"tree": {"label": "g", "children": ["a"]}, "label": 2}\n'),),
    "xml": ((".xml", _XML), (".svg", '<svg xmlns="http://www.w3.org/2000/svg"><g id="a"><path d="M0 0"/></g></svg>')),
    "html": ((".html", '<!doctype html><html><body class="a"><p>é<br><ul><li>1<li>2</ul><script>if (a<b) {}</script></body></html>\n'),),
    "python": ((".py", "# coding: utf-8\nimport os\nclass A(B):\n    def f(self, *a, x=1):\n        return [y for y in a if y] + f'{x!r}' or 'é'\n"),),
    "code": (
        (".c", '#include <a.h>\n#define X(a) ((a) + 1)\nint main(void) { for (int i = 0; i < 3; i++) { printf("%d", X(i)); } return 0; }\n'),
        (".java", "class A<T> extends B { @Override int f(int... x) { return x.length > 0 ? x[0] : 'a'; } }\n"),
        (".js", "const f = async ({a, ...b}) => { for (const x of a) await `${x}`; return /a+/g; }; <a b={1}>t</a>;\n"),
        (".h", "struct a { int b : 3; union { char *c; } d[2]; };\n"),
    ),
    "conllu": ((".conllu", _CONLLU),),
    "csv": ((".csv", 'tree,label\n"(f a b)",yes\n(g "a",no\n'), (".csv", "left,right,label\n(a b),c,1\n")),
    "tsv": ((".tsv", "tree\tlabel\n(f a b)\tyes\n(g a)\tno\n"), (".tsv", "left\tright\tlabel\n(a b)\tc\t1\n")),
    "parquet": ((".parquet", ""),),
}  # fmt: skip
_OPTIONS: Final[dict[str, dict[str, tuple[Any, ...]]]] = {
    "xml": {"text": (True, False)},
    "html": {"text": (True, False)},
    "json": {"literals": ("type", "keep")},
    "python": {"names": (True, False), "literals": ("type", "keep")},
    "code": {"strict": (True, False), "anonymous": (True, False), "names": (True, False), "literals": ("type", "keep")},
}


@functools.cache
def _samples(form: str) -> tuple[tuple[str, bytes], ...]:
    if form != "parquet":
        return tuple((suffix, text.encode()) for suffix, text in SAMPLES[form])
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    labels: list[Any] = [["yes", "no"], [1, None], [0.5, 1.5], [True, False], [[1], []], [b"a", b"b"]]
    labels += [
        pyarrow.array([0, 1], kind) for kind in (pyarrow.date32(), pyarrow.timestamp("s"), pyarrow.duration("ms"))
    ]
    labels.append(pyarrow.array(["yes", "no"]).dictionary_encode())
    samples = []
    for values in labels:
        file = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table({"tree": ["(f a b)", "(g a)"], "label": values}), file)
        samples.append((".parquet", file.getvalue()))
    return tuple(samples)


def _make(form: str, random: random.Random) -> bytes:
    suffix, sample = random.choice(_samples(form))
    others = tuple(data for other in SAMPLES if other != "parquet" for _, data in _samples(other))
    way = random.random()
    if way < 0.04:
        content = random.randbytes(random.randrange(300))
    elif way < 0.06:
        content = random.choice(DEEP) * random.choice((1000, 100_000))
    elif way < 0.08:  # many attributes, columns, labels or lines
        count = random.choice((100, 3000))
        piece = random.choice((b' a%d="1"', b",a%d", b"\ta%d", b"(a%d b)\n", b"a%d\n", b'"a%d": 1,'))
        place = random.randrange(len(sample) + 1)
        content = sample[:place] + b"".join(piece % number for number in range(count)) + sample[place:]
    else:
        content = mutated(random, sample, others)
    options = {name: random.choice(choices) for name, choices in _OPTIONS.get(form, {}).items()}
    return packed({"suffix": suffix, "skip_bad": random.random() < 0.5, "options": options}, content)


def _run(form: str, data: bytes, folder: Path) -> None:
    facts, content = unpacked(data)
    path = folder / f"input{facts['suffix']}"
    path.write_bytes(content)
    bad: list[ReadError] = []
    records = list(READERS[form](path, **facts["options"], on_bad=bad.append if facts["skip_bad"] else None))
    trees = [tree for record in records for tree in record.trees]
    require(bool(trees or bad), "no tree and no error")
    for problem in bad:
        str(problem).encode()
    for tree in trees:
        for node in tree.preorder():
            if isinstance(node.label, str):
                node.label.encode()  # what cannot be written to a file is no label
    require(list(Forest(trees)) == trees, "the forest has other trees")
    require([Tree.parse(str(tree)) for tree in trees] == trees, "the trees as text are other trees")


def _npz(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, words=np.array(["the", "dog", "New York"]), vectors=np.array([[0.5, 1], [2, 3], [4, 5]], np.float16))
    return file.getvalue()


@functools.cache
def _vectors() -> tuple[tuple[str, bytes], ...]:
    text = b"the 0.5 1\ndog 2 3e-2\nNew York 4 5\n"
    npz = ((".npz", _npz(save)) for save in (np.savez, np.savez_compressed))
    return ((".txt", text), (".txt", b"3 2\n" + text), *npz)


def _make_vectors(random: random.Random) -> bytes:
    suffix, sample = random.choice(_vectors())
    return packed({"suffix": suffix}, mutated(random, sample))


def _run_vectors(data: bytes, folder: Path) -> None:
    facts, content = unpacked(data)
    path = folder / f"input{facts['suffix']}"
    path.write_bytes(content)
    words, vectors = read_vectors(path, ["the", "dog", "New York", "cat"])
    require(bool(words) and vectors.shape[:1] == (len(words),), "another number of vectors than of words")
    require(bool(np.isfinite(vectors).all()), "vectors with NaN or infinity")


# Files of SICK: two pairs in each split.
_SICK: Final[dict[str, bytes]] = {
    **{f"dep_{split}/{side}.toks": b"cats sleep well\nno dog\n" for split in ("train", "dev", "test") for side in "ab"},
    **{f"dep_{split}/{side}.parents": b"2 0 2\n2 0\n" for split in ("train", "dev", "test") for side in "ab"},
    **{
        f"dep_{split}/{side}.rels": b"nsubj root advmod\ndet root\n"
        for split in ("train", "dev", "test")
        for side in "ab"
    },
    **{f"dep_{split}/sim.txt": b"1.5\n4\n" for split in ("train", "dev", "test")},
    **{f"dep_{split}/id.txt": b"1\n2\n" for split in ("train", "dev", "test")},
    **{
        f"SICK_{split}.txt": b"pair_ID\tsentence_A\trelatedness_score\tentailment_judgment\n1\tcats\t1.5\tNEUTRAL\n2\tno\t4\tENTAILMENT\n"
        for split in ("train", "trial", "test_annotated")
    },
}


def _make_sick(random: random.Random) -> bytes:
    name = random.choice(list(_SICK))
    content = mutated(random, _SICK[name], tuple(_SICK.values()))
    target = random.choice(("relatedness", "entailment"))
    return packed({"file": name, "target": target, "relations": random.random() < 0.5}, content)


def _run_sick(data: bytes, folder: Path) -> None:
    facts, content = unpacked(data)
    for name, right in _SICK.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if name == facts["file"] else right)
    made = load_sick(folder, facts["target"], relations=facts["relations"])
    require(len(made.forest) == 2 * len(made.targets), "another number of pairs than of labels")
    made.save(folder / "data")
    require(Dataset.open(folder / "data").fingerprint() == made.fingerprint(), "the saved data set is another one")


TARGETS: Final = [
    *(Target(f"reader {form}", functools.partial(_make, form), functools.partial(_run, form)) for form in READERS),
    Target("reader vectors", _make_vectors, _run_vectors),
    Target("reader SICK", _make_sick, _run_sick),
]
