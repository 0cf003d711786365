#!/usr/bin/env bash
# Packs FlashInfer for a GPU machine without a network: what its attention needs, in one file of 8 MB.
#
#     tests/flashinfer_bundle.sh FILE.tar.gz [PYTHON]      PYTHON: that machine's version, usually 3.12
#
# On that machine, which needs nvcc and torch:
#     mkdir -p /tmp/peer && tar xzf FILE.tar.gz -C /tmp/peer
#     PYTHONPATH=src:tests:/tmp/peer python3 tests/gpu_attention.py
# FlashInfer compiles its kernels when they are first called, which the script does beside its checks. It is only run for
# comparison, never shipped.
set -euo pipefail
out=$(realpath -m "${1:?file}") python=${2:-3.12}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/wheels" "$folder/site"
platforms=(--platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux_2_17_x86_64)
python3 -m pip download --quiet --no-deps --dest "$folder/wheels" --only-binary=:all: --python-version "$python" \
    "${platforms[@]}" flashinfer-python==0.5.3 "apache-tvm-ffi>=0.1,<0.2" einops tabulate nvidia-ml-py click
for wheel in "$folder"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$folder/site"; done
# Of CUTLASS only the headers are needed.
find "$folder/site/flashinfer/data/cutlass" -mindepth 1 -maxdepth 1 ! -name include ! -name tools -exec rm -rf {} +
tar czf "$out" -C "$folder/site" .
du -h "$out"
