"""The page that shows trees with the answers of models."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from treefold.data.dataset import Dataset
from treefold.service.models import Served


def router(
    models: Mapping[str, Served],
    data: Mapping[str, Dataset],
    run: Callable[..., Awaitable[Any]],
    *,
    most_nodes: int = 10_000,
) -> APIRouter:
    """Return the paths that only the page needs; ``run`` computes a function within the limits of the service."""
    found = APIRouter()

    @found.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        return HTMLResponse("<!doctype html><title>treefold</title><p>hello")

    return found
