# The demo, without a GPU:
#   docker build -t flsel .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" flsel
# Another command: docker run ... flsel train --rounds 20
FROM python:3.12-slim

# PyTorch's own index has wheels without CUDA, a tenth of the size; the versions are those of the tests.
COPY constraints.txt /tmp/
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu \
    -c /tmp/constraints.txt torch torchvision
COPY pyproject.toml setup.py README.md LICENSE /tmp/flsel/
COPY flsel /tmp/flsel/flsel
COPY tune /tmp/flsel/tune
COPY configs /tmp/flsel/configs
COPY atlas /tmp/flsel/atlas
RUN pip install --no-cache-dir -c /tmp/constraints.txt /tmp/flsel

# Whoever the container runs as may write: --user gives reports the owner of the folder that they are written to.
ENV HOME=/tmp
RUN mkdir /work && chown 1000:1000 /work
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["flsel"]
CMD ["compare", "--config", "quickstart", "--partition", "Shards", "--partition.per_client", "2", \
     "--availability", "YMF", "--selectors", "Uniform,PowD:d=12,FedGS", "--seeds", "16", "--rounds", "60", \
     "--threads", "1", "--name", "demo"]
