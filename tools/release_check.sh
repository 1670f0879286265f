#!/usr/bin/env bash
# Is the last GPU run still a statement about this code? Needs no GPU.
#
#   ./tools/release_check.sh              exit 1, with the reason, unless the receipt is of this code and clean
#   ./tools/release_check.sh --report     the same for CTest: what is amiss is "skipped: reason", exit 0
#   ./tools/release_check.sh --digest     prints the digest of the code that a receipt vouches for
#   ./tools/release_check.sh --compare P  exit 1 unless program P was built from this code
#   ./tools/release_check.sh --write-digest FILE   the digest and the commit as C++, for the build
#
# SCANJIT_RECEIPT names another receipt than tests/gpu/receipt.json.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
receipt="${SCANJIT_RECEIPT:-$root/tests/gpu/receipt.json}"

# SHA-256 over the lines "<sha256>  <path>" of every file that decides what runs on the GPU.
digest() {
  (cd "$root" && find kernel_templates src/jit src/ops src/engine src/tuning src/cuda -type f -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1)
}

# One field of the receipt, which has one a line.
field() { sed -n "s/^ *\"$1\": *\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$receipt" | head -n 1; }

# Sets `reason`: empty if the receipt is good.
judge() {
  reason=""
  if [ ! -f "$receipt" ]; then
    reason="there is no receipt (${receipt#"$root"/}): run tools/gpu_check.sh on a machine with a GPU"
    return
  fi
  local schema of now failed skipped passed sanitizer
  schema="$(field schema)" of="$(field digest)" now="$(digest)"
  passed="$(field passed)" failed="$(field failed)" skipped="$(field skipped)" sanitizer="$(field sanitizer)"
  if [ "$schema" != scanjit-receipt/1 ]; then
    reason="the receipt's schema is \"$schema\", not scanjit-receipt/1"
  elif [ "$of" != "$now" ]; then
    reason="the receipt is of other code (digest ${of:0:12}, now ${now:0:12}): run tools/gpu_check.sh again"
  elif [ -z "$passed" ] || [ "$passed" = 0 ]; then
    reason="the receipt has no passed tests"
  elif [ "$failed" != 0 ]; then
    reason="the receipt has $failed failed tests"
  elif [ "$skipped" != 0 ]; then
    reason="the receipt has $skipped skipped tests"
  elif [ "$(field quick)" != false ]; then
    reason="the receipt is of a quick run"
  elif [ "$sanitizer" != clean ] && [ "$sanitizer" != unavailable ]; then
    reason="compute-sanitizer says: $sanitizer"
  fi
}

case "${1:-}" in
  "")
    judge
    if [ -n "$reason" ]; then
      echo "release_check: $reason" >&2
      exit 1
    fi
    echo "The receipt is of this code: $(field passed) GPU tests passed on $(field gpu), sanitizer $(field sanitizer), $(field figures_missed) of $(field figures) figures missed."
    ;;
  --report)
    judge
    [ -z "$reason" ] || echo "skipped: $reason"
    ;;
  --digest)
    digest
    ;;
  --compare)
    built="$("${2:?a program}" --digest)" now="$(digest)"
    if [ "$built" != "$now" ]; then
      echo "release_check: $2 was built from other code (digest ${built:0:12}, now ${now:0:12})" >&2
      exit 1
    fi
    ;;
  --write-digest)
    out="${2:?a file}"
    commit="$(git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown)"
    text="$(printf 'namespace scanjit {\nextern const char gpu_source_digest[] = "%s";\nextern const char gpu_source_commit[] = "%s";\n}  // namespace scanjit\n' "$(digest)" "$commit")"
    if [ ! -f "$out" ] || [ "$(cat "$out")" != "$text" ]; then printf '%s\n' "$text" >"$out"; fi
    ;;
  *)
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
