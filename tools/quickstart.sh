#!/usr/bin/env bash
# From a fresh Debian machine to the main job in one command.
#
#   ./tools/quickstart.sh            install what is missing, build, and
#                                      with a GPU:    tune scan kernels by width, then time them
#                                      without one:   compile a pack of kernels for the H200
#   ./tools/quickstart.sh --deps     install what is missing, and no more
#   ./tools/quickstart.sh --out DIR  where results go (default: build/quickstart, or ./scanjit-quickstart
#                                    beside an installed scanjit)
#
# If there is a built scanjit already (SCANJIT=/path/to/scanjit, or bin/scanjit in the folder above this
# script, as in an installed tree) it is used, and nothing is installed or built.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
packages=(cmake ninja-build g++ libspdlog-dev nlohmann-json3-dev libcli11-dev catch2 libfmt-dev python3-jsonschema)

say() { printf '%s\n' "$*" >&2; }
fail() { say "quickstart: $*"; exit 3; }

# The packages of the list that dpkg does not have.
missing_packages() {
  local package
  for package in "${packages[@]}"; do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
      printf '%s\n' "$package"
    fi
  done
}

install_dependencies() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "This is no Debian or Ubuntu: nothing is installed. The build needs what there is called: ${packages[*]}"
    return
  fi
  local missing=() as_root=()
  mapfile -t missing < <(missing_packages)
  if [ "${#missing[@]}" -eq 0 ]; then return; fi
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "these packages are missing: ${missing[*]}; you are not root and there is no sudo: have somebody run  apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "Installing ${missing[*]}"
  local quiet=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
  # A list of packages that is there may do; one that is missing or old has to be fetched.
  if ! "${as_root[@]}" "${quiet[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1; then
    "${as_root[@]}" "${quiet[@]}" update >&2 || say "apt-get update failed; trying with the package lists that are there"
    "${as_root[@]}" "${quiet[@]}" install -y --no-install-recommends "${missing[@]}" >&2 ||
      fail "apt-get could not install ${missing[*]}; its own words are above"
  fi
}

build() {
  say "Building scanjit in $root/build/release"
  (cd "$root" && cmake --preset release >&2 && cmake --build --preset release --target scanjit_cli >&2)
}

# Prints the path of a scanjit to run, built if there is none.
find_scanjit() {
  if [ -n "${SCANJIT:-}" ]; then
    [ -x "$SCANJIT" ] || fail "SCANJIT=$SCANJIT is not a program"
    printf '%s\n' "$SCANJIT"
  elif [ -x "$root/bin/scanjit" ]; then
    printf '%s\n' "$root/bin/scanjit"
  else
    [ -f "$root/CMakeLists.txt" ] || fail "there is neither bin/scanjit nor a CMakeLists.txt in $root"
    install_dependencies
    build
    printf '%s\n' "$root/build/release/bin/scanjit"
  fi
}

# With a GPU: three widths of one layer, each with a best config of its own.
tune_and_time() {
  local shapes=(--shape "N=1,T=1024,H=16,HV=32" --shape "N=16,T=1024,H=16,HV=32" --shape "N=32,T=256,H=16,HV=32")
  say
  say "Tuning the gated-delta scan for 1, 16 and 32 sequences. The winners go to your cache."
  "$scanjit" tune gated_delta_h "${shapes[@]}" --out "$out/tuned.json"
  say
  say "Every config at each width:"
  "$scanjit" bench gated_delta_h "${shapes[@]}"
  say
  say "Done. The picks are in $out/tuned.json and in the cache: scanjit cache ls"
  say "Run the op on tensors of your own: scanjit run gated_delta_h --in x.safetensors --out y.safetensors"
}

# Without one: what an image build does for the servers that will have GPUs.
compile_pack() {
  if grep -q '^missing  *NVRTC' <<<"$findings"; then
    say
    say "There is no GPU here and no NVRTC, NVIDIA's run-time compiler, so nothing can be compiled. NVRTC alone"
    say "is enough, and is in the Python package nvidia-cuda-nvrtc:"
    say "    python3 -m venv nvrtc && . nvrtc/bin/activate && pip install nvidia-cuda-nvrtc"
    say "or in the package cuda-nvrtc-13-0 of NVIDIA's apt repository. Then run this again in the same shell."
    exit 3
  fi
  local tuned=() candidate
  for candidate in "$root/configs/NVIDIA_H200.json" "$root/share/scanjit/configs/NVIDIA_H200.json"; do
    if [ -f "$candidate" ]; then tuned=(--tuned "$candidate"); fi
  done
  say
  say "No usable GPU here, so: compiling the shipped configs for the H200 into $out/pack"
  "$scanjit" prewarm --arch sm_90a "${tuned[@]}" --out "$out/pack"
  say
  say "Done. Copy $out/pack into the image of a server with H200s and name it there:"
  say "    EngineOptions::pack_dirs = {\"/path/to/pack\"}"
  say "The server then needs neither NVRTC nor tuning. Look inside: scanjit cache ls $out/pack"
}

out=""
only_dependencies=no
while [ $# -gt 0 ]; do
  case "$1" in
    --deps) only_dependencies=yes ;;
    --out) [ $# -ge 2 ] || { say "quickstart: --out needs a folder"; exit 2; }; out="$2"; shift ;;
    -h|--help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) say "quickstart: unknown argument $1 (try --help)"; exit 2 ;;
  esac
  shift
done

if [ "$only_dependencies" = yes ]; then
  install_dependencies
  exit 0
fi

scanjit="$(find_scanjit)"
if [ -z "$out" ]; then
  if [ -f "$root/CMakeLists.txt" ]; then out="$root/build/quickstart"; else out="$PWD/scanjit-quickstart"; fi
fi
mkdir -p "$out" || fail "cannot make the folder $out"

doctor=0
findings="$("$scanjit" doctor)" || doctor=$?
say "$findings"
case "$doctor" in
  0) tune_and_time ;;
  3) compile_pack ;;
  *) fail "$scanjit doctor failed with status $doctor" ;;
esac
