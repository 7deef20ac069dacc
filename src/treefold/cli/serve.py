"""The command that serves models."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from treefold.cli.console import Plugins, err, say
from treefold.errors import ConfigurationError, TreefoldError

if TYPE_CHECKING:
    from treefold.data.dataset import Dataset
    from treefold.service.models import Served

_KEY: Final = "TREEFOLD_API_KEY"
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def serve(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs or saved models.", show_default=False)],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 means any that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="The address; one beyond this machine needs a key.")] = "127.0.0.1",
    api_key: Annotated[
        str | None,
        typer.Option(
            help=f"Answer only those who send this key; better in the environment, as {_KEY}.", show_default=False
        ),
    ] = None,
    data: Annotated[
        list[Path] | None, typer.Option(help="A data set whose trees the page shows; may be repeated.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes; they share the memory of the models.")] = 1,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 1_000_000,
    max_nodes: Annotated[int, typer.Option(min=1, help="Nodes of a tree.")] = 100_000,
    max_explained: Annotated[int, typer.Option(min=1, help="Nodes of a tree to explain.")] = 10_000,
    max_trees: Annotated[int, typer.Option(min=1, help="Trees or pairs of a request.")] = 1_000,
    max_queue: Annotated[int, typer.Option(min=1, help="Waiting requests of a worker.")] = 256,
    max_seconds: Annotated[float, typer.Option(min=0.01, help="Seconds until a request is given up.")] = 30.0,
    plugins: Plugins = None,
) -> None:
    """Serve models: a page to explore them, and JSON for programs.

    `POST /predict`, `/explain` and `/embed` take trees, alone or many; `GET /models`, `/health` and `/metrics` tell about the
    service, and `/docs` describes everything. The first run answers requests that name no model. A run that is still being
    trained is served with its best model so far. It needs `pip install 'treefold[serve]'`.

    Example: `treefold serve runs/hosvd runs/sum --data data/listops`, then open http://127.0.0.1:8000, or

    `curl http://127.0.0.1:8000/predict -H 'Content-Type: application/json' -d '{"tree": "(MAX 2 (MIN 3 4))"}'`
    """
    key = api_key if api_key is not None else os.environ.get(_KEY) or None
    if key is not None and (len(key) < 8 or not key.isascii() or not key.isprintable()):
        raise ConfigurationError(
            "--api-key expects at least 8 printable ASCII characters, got fewer or other characters; choose another key."
        )
    if key is None and host not in _LOOPBACK:
        raise ConfigurationError(
            f"--host expects this machine alone, 127.0.0.1, as there is no key, got {host!r}; set a key with --api-key or {_KEY}."
        )
    from treefold.data.readers.stream import optional_package

    for package in ("fastapi", "uvicorn", "httptools"):
        optional_package(package, extra="serve")
    import torch

    from treefold.data.dataset import Dataset
    from treefold.service.app import Limits
    from treefold.service.models import open_models
    from treefold.service.workers import listen
    from treefold.service.workers import serve as serve_models

    torch.set_num_threads(1)  # also while models are loaded: other threads of torch would not survive in workers
    limits = Limits(max_body, max_nodes, max_explained, max_trees, max_queue, max_seconds)
    models = open_models(runs)
    sets = _by_model(models, [(path, Dataset.open(path)) for path in data or []])
    with listen(host, port) as place:
        for served in models.values():
            shown = f"examples of {sets[served.name][0]}" if served.name in sets else ""
            say("; ".join(filter(None, [f"{served.name}: {served.saved.settings.task}", shown, served.note])), to=err)
        address, number = place.getsockname()[:2]
        where = "this machine" if address in ("0.0.0.0", "::") else f"[{address}]" if ":" in address else address
        say(f"open http://{where}:{number} in a browser; Ctrl-C ends the service", to=err)
        examples = {name: found for name, (_, found) in sets.items()}
        serve_models(models, place, limits, api_key=key, data=examples, workers=workers)


def _by_model(
    models: "Mapping[str, Served]", sets: "Sequence[tuple[Path, Dataset]]"
) -> "dict[str, tuple[Path, Dataset]]":
    """Give each model the first data set that it can be evaluated on; raise if one fits no model."""
    import numpy as np

    from treefold.analysis.evaluation import examples_of

    found: dict[str, tuple[Path, Dataset]] = {}
    for path, data in sets:
        problems = []
        for name, served in models.items():
            try:
                examples_of(served.saved, data, np.arange(len(data)))
            except TreefoldError as problem:
                problems.append(problem)
            else:
                found.setdefault(name, (path, data))
        if len(problems) == len(models):
            raise ConfigurationError(f"--data {path} fits no model: {problems[0]}")
    return found
