#!/usr/bin/env bash
# The whole way in one go: fetch the sample, build, make the mixture of experts, print the plan for two virtual cards,
# stream an answer. Needs Rust (rustup), python3 and pip; no GPU. A second run uses what the first left in .cache/ and target/.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly prompt=${1:-"What is gravity?"}
readonly topology="topology/virtual-two-cards.yaml"
readonly dense=".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
readonly model=".cache/models/smollm2-moe-k12.gguf"
readonly aqueduct="${CARGO_TARGET_DIR:-target}/release/aqueduct"

fail() {
  printf 'demo: %s\n' "$*" >&2
  exit 1
}

step() {
  printf '\n== %s\n' "$*"
}

# rustup's installer puts cargo on the PATH of new shells only.
if ! command -v cargo >/dev/null && [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo ]]; then
  PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
fi
command -v cargo >/dev/null ||
  fail "cargo is missing. On Debian: apt-get install rustup && rustup default stable (or the installer at rustup.rs)"
command -v cc >/dev/null || fail "cargo needs a linker, cc is missing. On Debian: apt-get install gcc libc6-dev"
command -v python3 >/dev/null || fail "python3 is missing. On Debian: apt-get install python3 python3-pip"

step "1. the dense model"
deploy/fetch-sample.sh

step "2. build"
cargo build --release --locked ||
  fail "the build failed. Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) or later is needed, here is" \
    "$(rustc --version 2>&1 | head -1). To update: rustup update stable"

step "3. the mixture of experts"
"$aqueduct" sample "$dense" -o "$model"

step "4. the plan for $topology"
"$aqueduct" plan --topology "$topology" --model "$model"

step "5. the answer to: $prompt"
"$aqueduct" run --topology "$topology" --model "$model" --chat -p "$prompt" -n 64
