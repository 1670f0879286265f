#!/usr/bin/env bash
# Builds scanjit and runs its tests. Needs no GPU: tests that want one are skipped, and counted.
#
#   ./tools/test.sh [--preset NAME] [CMAKE-ARGUMENT ...]
#
# The preset is release unless named (dev, asan, tsan, tidy: CMakePresets.json); what follows goes to cmake,
# for example -DSCANJIT_WARNINGS_AS_ERRORS=ON.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=release
if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tools/test.sh
  exit 0
fi
if [ "${1:-}" = --preset ]; then
  [ $# -ge 2 ] || { echo "test: --preset needs a name" >&2; exit 2; }
  preset="$2"
  shift 2
fi

./tools/quickstart.sh --deps
cmake --preset "$preset" "$@"
cmake --build --preset "$preset"

log="build/$preset/test.log"
status=0
ctest --preset "$preset" --output-on-failure --parallel "$(nproc)" | tee "$log" || status=$?

skipped="$(grep -c '\*\*\*Skipped' "$log" || true)"
skipped_gpu="$(grep '\*\*\*Skipped' "$log" | grep -c ' gpu\.' || true)"
echo "Skipped: $skipped tests, of them $skipped_gpu that need a GPU."
exit "$status"
