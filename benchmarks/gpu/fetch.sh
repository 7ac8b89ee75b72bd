#!/bin/sh
# Bring along what the GPU machine lacks: wheels and datasets, into the ignored folder bundle (at most 60 MiB).
# benchmarks/gpu/fetch.sh DATA    DATA holds FashionMNIST/raw and MNIST/raw
set -eu
here=$(cd "$(dirname "$0")" && pwd)
data=${1:?usage: fetch.sh DATA, the folder with FashionMNIST/raw and MNIST/raw}
mkdir -p "$here/bundle"
python3 -m pip download -q --no-deps --python-version 3.12 --implementation cp --only-binary=:all: \
    --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 --platform any \
    -d "$here/bundle" jsonargparse typeshed-client docstring-parser ruamel.yaml typing-extensions \
    importlib-resources hypothesis sortedcontainers pytest pluggy iniconfig packaging pytest-timeout pytest-xdist execnet rich markdown-it-py \
    mdurl pygments
test -s "$here/bundle/data.tar.gz" || tar -C "$data" -czf "$here/bundle/data.tar.gz" FashionMNIST/raw MNIST/raw
size=$(du -sm "$here/bundle" | cut -f1)
echo "$here/bundle: $size MiB"
[ "$size" -le 60 ] || { echo "fetch.sh: more than 60 MiB" >&2; exit 1; }
