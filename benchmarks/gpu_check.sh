#!/usr/bin/env bash
# Everything that needs a GPU in one call: build, tests, compute-sanitizer, benchmark. Writes gpu_check.txt, the table
# and the CSV to the folder given (default out/gpu).
#
#   benchmarks/gpu_check.sh [OUT_DIR] [--no-build] [--quick] [--no-sanitizer]
set -uo pipefail
cd "$(dirname "$0")/.."
out=out/gpu quick="" build=1 sanitizer=1
for arg in "$@"; do
  case $arg in
    --no-build) build=0 ;;
    --quick) quick=--quick ;;
    --no-sanitizer) sanitizer=0 ;;
    *) out=$arg ;;
  esac
done
mkdir -p "$out"
export PYTHONUNBUFFERED=1

step() { # name, command...: runs it, keeps its output, remembers a failure
  local name=$1 began=$SECONDS code
  shift
  "$@" >"$out/$name.txt" 2>&1
  code=$?
  [ $code -eq 0 ] || status=1
  echo "$name: $([ $code -eq 0 ] && echo ok || echo "FAILED ($code)"), $((SECONDS - began)) s; $(tail -1 "$out/$name.txt")"
}
{
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  python3 -c 'import torch; print("torch", torch.__version__)'
  [ $build = 0 ] || step build python3 setup.py -q build_ext --inplace
  step tests timeout 300 python3 -m pytest -q --maxfail=40 -p no:cacheprovider -rP tests/ops/test_cuda.py
  if [ $sanitizer = 1 ]; then
    for tool in memcheck racecheck; do
      step $tool timeout 150 compute-sanitizer --tool $tool --error-exitcode 9 --kernel-name regex=surprise_hf \
        python3 benchmarks/gpu_sanitize.py
    done
  fi
  step bench timeout 400 python3 benchmarks/bench_gpu.py $quick --out "$out/bench_gpu.csv"
  cat "$out/bench.txt"
} 2>&1 | tee "$out/gpu_check.txt"
grep -qE "^[a-z]+: FAILED" "$out/gpu_check.txt" && exit 1 || exit 0
