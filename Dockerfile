# A service of models: docker build -t treefold . && docker run --rm -p 8000:8000 -e TREEFOLD_API_KEY=… -v ./runs:/runs:ro treefold /runs/hosvd
FROM python:3.12-slim
RUN useradd --create-home treefold
COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir -c /src/constraints.txt '/src[serve,readers]'
USER treefold
RUN python -m treefold.kernels
EXPOSE 8000
ENTRYPOINT ["treefold", "serve", "--host", "0.0.0.0"]
