#!/usr/bin/env bash
# Makes the archive of GPU kernels that a release carries: PTX, which the driver compiles, for machines without NVRTC.
# Unpacked beside the program it is the folder `aqueduct-kernels`. Needs python3 with pip; no GPU.
#
#   deploy/kernels.sh [AQUEDUCT] [ARCHIVE]      the program, else target/release/aqueduct; else aqueduct-kernels.tar.gz
#
# PTX loads in drivers at least as new as its compiler: so each architecture's is made by the first compiler that knows it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly aqueduct=$(realpath "${1:-target/release/aqueduct}")
readonly archive=$(realpath -m "${2:-aqueduct-kernels.tar.gz}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# build WHEEL ARCHS
build() {
  local venv=.cache/nvrtc-${1##*==}
  if [[ ! -e $venv/ready ]]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$1"
    touch "$venv/ready"
  fi
  local library
  library=$(find "$PWD/$venv" -name 'libnvrtc.so.1?' | head -n 1)
  "$aqueduct" kernels --nvrtc "$library" --arch "$2" --ptx "$work/aqueduct-kernels"
}

build nvidia-cuda-nvrtc-cu12==12.0.140 75,80,86,89,90
build nvidia-cuda-nvrtc-cu12==12.8.93 120
tar -C "$work" -czf "$archive" aqueduct-kernels
printf '%s: %d files, %s\n' "$archive" "$(ls "$work/aqueduct-kernels" | wc -l)" "$(du -h "$archive" | cut -f1)"
