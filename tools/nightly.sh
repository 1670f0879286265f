#!/usr/bin/env bash
# What takes too long for every change: each fuzz target for minutes, and the stores' tests in full (SCANJIT_NIGHTLY)
# under sanitizers.
#
#   ./tools/nightly.sh [MINUTES]
#
# MINUTES is how long each fuzz target runs (10). Needs clang with libFuzzer. What fuzzing finds lies in
# build/fuzz/tests/fuzz/NAME and belongs into tests/fuzz/corpus/NAME once it is fixed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tools/nightly.sh
  exit 0
fi
minutes="${1:-10}"
[[ "$minutes" =~ ^[0-9]+$ ]] || { echo "nightly: MINUTES is '$minutes', must be a whole number" >&2; exit 2; }

cmake --preset fuzz
cmake --build --preset fuzz
status=0
for corpus in "$PWD"/tests/fuzz/corpus/*/; do
  name="$(basename "$corpus")"
  found="$PWD/build/fuzz/tests/fuzz/$name"
  echo "fuzz $name for $minutes min"
  "build/fuzz/tests/fuzz/fuzz_$name" -max_total_time=$((minutes * 60)) -print_final_stats=1 \
    -artifact_prefix="$found/" "$found" "$corpus" || status=1
done

for preset in asan tsan; do
  cmake --preset "$preset"
  cmake --build --preset "$preset" --target scanjit_store_tests
  SCANJIT_NIGHTLY=1 ctest --test-dir "build/$preset" -R '^stores\.' --output-on-failure --no-tests=error || status=1
done
exit "$status"
