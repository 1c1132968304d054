# The explorer in a container:
#   docker build -t unembed .
#   docker run --rm -p 127.0.0.1:7333:7333 -v unembed:/cache unembed
# then open the address that it prints, with localhost in place of the container's name. The cache has the index and what
# `unembed models get` fetched. Another model: append `--model ID`.
FROM python:3.12-slim
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu
WORKDIR /unembed
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN pip install --no-cache-dir '.[gguf]'
RUN useradd --create-home reader && mkdir /cache && chown reader /cache
USER reader
ENV UNEMBED_CACHE=/cache
EXPOSE 7333
ENTRYPOINT ["unembed", "serve", "--host", "0.0.0.0", "--no-browser"]
