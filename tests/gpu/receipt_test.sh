#!/usr/bin/env bash
# tools/release_check.sh takes a good receipt and refuses every kind of bad one.
#   receipt_test.sh TOOLS-FOLDER
set -euo pipefail
check="$1/release_check.sh"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export SCANJIT_RECEIPT="$work/receipt.json"

write() { # digest passed failed skipped sanitizer quick
  cat >"$SCANJIT_RECEIPT" <<RECEIPT
{
 "schema": "scanjit-receipt/1",
 "digest": "$1",
 "gpu": "NVIDIA H200",
 "quick": $6,
 "tests": {
  "passed": $2,
  "failed": $3,
  "skipped": $4
 },
 "sanitizer": "$5",
 "figures": 40,
 "figures_missed": 0,
 "counts": [
  {"what":"oracle_table","failed":7,"digest":"0"}
 ]
}
RECEIPT
}
expect() { # refused|taken what
  local status=0 text
  text="$("$check" 2>&1)" || status=$?
  if { [ "$1" = taken ] && [ $status -ne 0 ]; } || { [ "$1" = refused ] && [ $status -ne 1 ]; }; then
    echo "receipt_test: $2 was not $1: status $status, $text" >&2
    exit 1
  fi
  text="$("$check" --report)"
  if { [ "$1" = taken ] && [ -n "$text" ]; } || { [ "$1" = refused ] && [ "${text#skipped: }" = "$text" ]; }; then
    echo "receipt_test: --report says \"$text\" of $2" >&2
    exit 1
  fi
}

now="$("$check" --digest)"
expect refused "no receipt"
write "$now" 17 0 0 clean false
expect taken "a good receipt"
write "$now" 17 0 0 unavailable false
expect taken "a good receipt from a machine without the sanitizer"
write "0${now:1}x" 17 0 0 clean false
expect refused "another digest"
write "$now" 16 1 0 clean false
expect refused "a failed test"
write "$now" 16 0 1 clean false
expect refused "a skipped test"
write "$now" 0 0 0 clean false
expect refused "no test"
write "$now" 17 0 0 "racecheck failed" false
expect refused "a race"
write "$now" 17 0 0 clean true
expect refused "a quick run"
echo '{"digest": "'"$now"'"}' >"$SCANJIT_RECEIPT"
expect refused "another schema"
echo "receipt_test: ok"
