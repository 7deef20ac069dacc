"""A service that answers over HTTP with trained models, and a page to explore them.

- `models`: the runs that are served, and what they answer.
- `app`: the paths of the service, its limits and its errors.
- `batching`: requests that come together are computed together.
- `workers`: the processes that share a socket and the models.
- `explorer`: the page.
- `client`: uses a running service from Python.
"""
