#!/usr/bin/env bash
# Everything that needs a GPU in one call: build, tests, benchmark, compute-sanitizer, in that order and within a time
# that covers them all; what no longer fits is named. Needs torch with CUDA and pytest, nothing from the network. Writes
# gpu_check.txt (the summary), each step's output, and the CSV to the folder given (default out/gpu).
#
#   benchmarks/gpu_check.sh [OUT_DIR] [--no-build] [--quick] [--no-sanitizer] [--seconds=570]
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
out=out/gpu quick="" build=1 sanitizer=1 seconds=570
for arg in "$@"; do
  case $arg in
    --no-build) build=0 ;;
    --quick) quick=--quick ;;
    --no-sanitizer) sanitizer=0 ;;
    --seconds=*) seconds=${arg#*=} ;;
    -*) echo "unknown option $arg" >&2; exit 2 ;;
    *) out=$arg ;;
  esac
done
mkdir -p "$out"
export PYTHONUNBUFFERED=1
summary=$out/gpu_check.txt
: >"$summary"
# pytest without this project's settings: the machine's pytest may be older than they ask for
printf '[pytest]\naddopts = --import-mode=importlib\npythonpath = "%s"\n' "$PWD" >"$out/pytest.ini"

say() { echo "$@" | tee -a "$summary"; }
step() { # name, limit in seconds, command...: runs it, keeps its output, says how it went
  local name=$1 limit=$2 began=$SECONDS code
  shift 2
  [ "$limit" -le $((seconds - SECONDS)) ] || limit=$((seconds - SECONDS))
  if [ "$limit" -lt 5 ]; then
    say "$name: FAILED (no time left)"
    return 1
  fi
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.txt" 2>&1
  code=$?
  say "$name: $([ $code -eq 0 ] && echo ok || echo "FAILED ($code)"), $((SECONDS - began)) s; $(tail -n 1 "$out/$name.txt")"
  return $code
}

say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader)"
[ $build = 0 ] || step build 560 python3 setup.py -q build_ext --inplace
# without the library every test fails the same way
if step library 120 python3 -c 'import torch, surprise_hf.ops as ops
info = ops.build_info()
assert info["cuda_library"], info["cuda_reason"]
x = torch.randn(300, 64, device="cuda")
print(*ops.cosine_surprise(x, x[:10])[1][:2].tolist(), "torch", torch.__version__, info["cuda_library"])'; then
  step tests 240 python3 -m pytest -c "$out/pytest.ini" --rootdir=. -q --maxfail=40 -p no:cacheprovider -rP tests/ops/test_cuda.py
  step bench 200 python3 benchmarks/bench_gpu.py $quick --out "$out/bench_gpu.csv"
  tee -a "$summary" <"$out/bench.txt"
  if [ $sanitizer = 1 ]; then
    # each tensor in an allocation of its own, or reads past its end go unseen
    for tool in memcheck racecheck synccheck initcheck; do
      PYTORCH_NO_CUDA_MEMORY_CACHING=1 step $tool 120 compute-sanitizer --tool $tool --error-exitcode 9 \
        --kernel-name regex=surprise_hf python3 benchmarks/gpu_sanitize.py
    done
  fi
fi
! grep -qE "^[a-z]+: FAILED" "$summary"
