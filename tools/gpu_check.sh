#!/usr/bin/env bash
# Runs every GPU test, compute-sanitizer and the figures on the GPU of this machine, and writes the receipt
# that tools/release_check.sh reads. Builds nothing: tests/gpu/README.md says how to carry the programs here.
#
#   tools/gpu_check.sh [--quick] [--bin DIR] [--out FILE] [--figures FILE] [--seconds N] [--no-figures]
#
#   --quick         a tenth of everything, to see that it works; its receipt does not count
#   --bin DIR       where scanjit_gpu_tests and scanjit_gpu_figures are (default: bin beside tools)
#   --out FILE      the receipt (default: tests/gpu/receipt.json)
#   --figures FILE  the figures as a benchmark file as well, such as docs/benchmarks/h200_runtime.json
#   --seconds N     begin no further figure after so many seconds of figures (default: 200)
#   --no-figures    leave the figures out
#
# Exit 0: all passed; 1: something failed; 3: no GPU here. Missed figures are told, and do not fail.
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
bin="$root/bin" out="$root/tests/gpu/receipt.json" figures_out="" quick=false with_figures=true seconds=200
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) quick=true ;;
    --seconds) seconds="${2:?--seconds needs a number}" && shift ;;
    --no-figures) with_figures=false ;;
    --bin) bin="${2:?--bin needs a folder}" && shift ;;
    --out) out="${2:?--out needs a file}" && shift ;;
    --figures) figures_out="${2:?--figures needs a file}" && shift ;;
    *)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
  esac
  shift
done
tests="$bin/scanjit_gpu_tests" figures="$bin/scanjit_gpu_figures" cases="$root/tests/gpu/cases.txt"
for file in "$tests" "$figures" "$bin/scanjit_server" "$cases"; do
  [ -e "$file" ] || { echo "gpu_check: $file is not there" >&2; exit 2; }
done

gpu="$("$figures" --gpu)" || { echo "gpu_check: no GPU here" >&2; exit 3; }
driver="${gpu#*|}" gpu="${gpu%%|*}"
digest="$("$figures" --digest)" commit="$("$figures" --commit)"
echo "gpu_check: $gpu, driver $driver, code ${digest:0:12} ($commit)"

start=$SECONDS
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -m 700 "$work/cache"
export SCANJIT_GPU_TEST_CACHE="$work/cache" SCANJIT_GPU_COUNTS="$work/counts"
touch "$work/counts"
if $quick; then
  export SCANJIT_GPU_PROBLEMS=32 SCANJIT_GPU_SEEDS=1 SCANJIT_GPU_MAP_STRIDE=8 SCANJIT_GPU_DELAY_RUNS=80
fi

# One case in a process of its own: a fault on the device ends that case and no other.
run_case() { # tag seconds command...
  local began=$SECONDS status=0 result
  timeout -k 5 "$2" "${@:3}" >"$work/$1.log" 2>&1 || status=$?
  if [ $status -eq 124 ] || [ $status -eq 137 ]; then result="failed (hung)"
  elif [ $status -ne 0 ] || grep -q 'No test cases matched\|No tests ran' "$work/$1.log"; then result="failed"
  elif grep -q '^skipped: ' "$work/$1.log"; then result="skipped"
  else result="passed"
  fi
  echo "$result|$((SECONDS - began))" >"$work/$1.result"
  # What went wrong is told at once: a run that is cut short must not lose it.
  local log=""
  case "$result" in failed*) log="$(printf '\n---- %s (last 60 lines)\n%s' "$1" "$(tail -n 60 "$work/$1.log")")" ;; esac
  echo "gpu_check: $1 $result, $((SECONDS - began)) s$log"
}

# Three at a time: some load the processors, some the GPU. Nothing here is timed.
names=() alone=()
while read -r tag limit company; do
  case "$tag" in "" | "#"*) continue ;; esac
  names+=("$tag")
  if [ "$company" = alone ]; then
    alone+=("$tag $limit")
    continue
  fi
  while [ "$(jobs -rp | wc -l)" -ge 3 ]; do wait -n; done
  run_case "$tag" "$limit" "$tests" "[$tag]" &
done <"$cases"
wait
for case in "${alone[@]}"; do
  read -r tag limit <<<"$case"
  run_case "$tag" "$limit" "$tests" "[$tag]"
done

# The embedding server alone, since it tunes: cold, prewarmed, and with its picks exchanged.
names+=(server)
run_case server 180 "$bin/scanjit_server" --cache-dir "$work/server-cache" --heads 16 32 --width 128 --flip off --requests 5

# compute-sanitizer works on some machines only.
sanitizer_tool="$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)"
sanitizer=unavailable
if [ -n "$sanitizer_tool" ] && timeout 60 "$sanitizer_tool" --report-api-errors no --error-exitcode 9 "$figures" --gpu >"$work/sanitizer.probe" 2>&1 &&
  grep -q 'ERROR SUMMARY: 0 errors' "$work/sanitizer.probe"; then
  sanitize() { # tool, test case, what the tool prints when all is well, options
    SCANJIT_GPU_COUNTS="" timeout 150 "$sanitizer_tool" --tool "$1" "${@:4}" --error-exitcode 9 "$tests" "[$2]" \
      >"$work/$1.log" 2>&1 && grep -q "$3" "$work/$1.log"
  }
  # Calls that fail are the library's to answer, and its own tests look at that.
  sanitize memcheck sanitizer 'ERROR SUMMARY: 0 errors' --report-api-errors no & memcheck=$!
  sanitize racecheck racecheck 'RACECHECK SUMMARY: 0 hazards' & racecheck=$!
  sanitizer=""
  wait $memcheck || sanitizer="memcheck failed"
  wait $racecheck || sanitizer="${sanitizer:+$sanitizer, }racecheck failed"
  sanitizer="${sanitizer:-clean}"
fi
echo "gpu_check: compute-sanitizer: $sanitizer"
case "$sanitizer" in
  *failed*)
    for tool in memcheck racecheck; do
      echo "---- $tool (last 40 lines)"
      tail -n 40 "$work/$tool.log"
    done
    ;;
esac

# The figures last and alone: they are times.
rows="$work/rows" missed=0 total=0
touch "$rows"
if $with_figures; then
  arguments=(--seconds "$seconds")
  if $quick; then arguments+=(--quick); fi
  if [ -n "$figures_out" ]; then arguments+=(--out "$figures_out"); fi
  timeout -k 5 $((seconds + 80)) "$figures" "${arguments[@]}" >"$rows" 2>"$work/figures.log" ||
    { status=$?; [ $status -eq 1 ] || echo "gpu_check: the figures ended with status $status: $(tail -n 1 "$work/figures.log")"; }
  total="$(grep -c '^{' "$rows")" missed="$(grep -c '"ok":false' "$rows")"
fi

passed=0 failed=0 skipped=0
for tag in "${names[@]}"; do
  case "$(cut -d '|' -f 1 "$work/$tag.result" 2>/dev/null)" in
    passed) passed=$((passed + 1)) ;;
    skipped) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
  esac
done

# One field a line, so that release_check.sh needs no JSON parser.
counts_of() { grep -F "{\"what\":\"$1\"" "$work/counts" | tail -n 1 | grep . || echo null; }
listed() { sed 's/$/,/;$s/,$//;s/^/  /' "$1"; }
mkdir -p "$(dirname "$out")"
grep '"ok":false' "$rows" >"$work/missed" || true
{
  echo '{'
  echo ' "schema": "scanjit-receipt/1",'
  echo " \"digest\": \"$digest\","
  echo " \"commit\": \"$commit\","
  echo " \"gpu\": \"$gpu\","
  echo " \"driver\": \"$driver\","
  echo " \"date\": \"$(date -u +%Y-%m-%dT%H:%M:%SZ)\","
  echo " \"seconds\": $((SECONDS - start)),"
  echo " \"quick\": $quick,"
  echo ' "tests": {'
  echo "  \"passed\": $passed,"
  echo "  \"failed\": $failed,"
  echo "  \"skipped\": $skipped"
  echo ' },'
  echo " \"sanitizer\": \"$sanitizer\","
  echo " \"figures\": $total,"
  echo " \"figures_missed\": $missed,"
  echo ' "missed": ['
  listed "$work/missed"
  echo ' ],'
  echo " \"oracle\": $(counts_of oracle_table),"
  echo " \"map\": $(counts_of map_oracle),"
  echo " \"bits\": $(counts_of bits_map),"
  echo ' "counts": ['
  listed "$work/counts"
  echo ' ]'
  echo '}'
} >"$out"

echo
grep '^{' "$rows" | sed -n 's/^{"what":"\([^"]*\)","value":\([^,]*\),"unit":"\([^"]*\)","limit":\([^,]*\),"ok":\([^,}]*\).*/\1|\2|\3|\4|\5/p' |
  grep -v '^regret at \|^tunes that agree at ' |
  awk -F '|' '{ printf "%-96s %10.4g %-6s %s%s\n", $1, $2, $3, ($4 == "null" ? "" : "limit " $4), ($5 == "false" ? "  MISSED" : "") }'
echo
for tag in "${names[@]}"; do
  IFS="|" read -r result took <"$work/$tag.result"
  printf '%-20s %-14s %4s s\n' "$tag" "$result" "$took"
done
echo "sanitizer: $sanitizer; figures: $total, missed: $missed; $passed passed, $failed failed, $skipped skipped in $((SECONDS - start)) s; receipt: $out"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ] && case "$sanitizer" in *failed*) false ;; esac
