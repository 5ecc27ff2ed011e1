#!/usr/bin/env bash
# Everything that needs a GPU in one call: build, tests, benchmark, compute-sanitizer, in that order and within a time
# that covers them all; what no longer fits is named. Needs torch with CUDA and pytest, nothing from the network. Writes
# gpu_check.txt (the summary), each step's output, and the CSV to the folder given (default out/gpu).
#
#   benchmarks/gpu_check.sh [OUT_DIR] [--steps="tests memcheck"] [--quick] [--seconds=570]
#
# Steps: build library tests memcheck bench racecheck synccheck initcheck. The CUDA library is built for the GPUs of this
# machine alone; where it can't be, one that was built elsewhere is taken as it is.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
out=out/gpu quick="" seconds=570
all="build library tests memcheck bench racecheck synccheck initcheck"
steps=$all
for arg in "$@"; do
  case $arg in
    --steps=*) steps=${arg#*=} ;;
    --quick) quick=--quick ;;
    --seconds=*) seconds=${arg#*=} ;;
    -*) echo "unknown option $arg" >&2; exit 2 ;;
    *) out=$arg ;;
  esac
done
# an earlier run's outputs would pass for this one's
mkdir -p "$out" && rm -f "$out/bench_gpu.csv" || exit 2
for name in $all; do rm -f "$out/$name.txt" || exit 2; done
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
summary=$out/gpu_check.txt
: >"$summary"
# pytest without this project's settings: the machine's pytest may be older than they ask for
printf '[pytest]\naddopts = --import-mode=importlib\npythonpath = "%s"\nfaulthandler_timeout = 100\n' "$PWD" >"$out/pytest.ini"

say() { echo "$@" | tee -a "$summary"; }
wanted() { [[ " $steps " == *" $1 "* ]]; }
step() { # name, limit in seconds, command...: runs it if it is wanted, keeps its output, says how it went
  local name=$1 limit=$2 began=$SECONDS code
  shift 2
  wanted "$name" || return 0
  [ "$limit" -le $((seconds - SECONDS)) ] || limit=$((seconds - SECONDS))
  if [ "$limit" -lt 5 ]; then
    say "$name: FAILED (no time left)"
    return 1
  fi
  # by SIGINT, which pytest answers with the failures so far
  timeout --signal=INT --kill-after=10 "$limit" "$@" >"$out/$name.txt" 2>&1
  code=$?
  say "$name: $([ $code -eq 0 ] && echo ok || echo "FAILED ($code)"), $((SECONDS - began)) s; $(tail -n 1 "$out/$name.txt")"
  return $code
}
sanitize() { # tool, its options...
  local tool=$1
  shift
  # each tensor in an allocation of its own, or reads past its end go unseen; torch may take longer than the tool's ten
  # seconds to reach the GPU, which then passes unwatched
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 step "$tool" 120 compute-sanitizer --tool "$tool" --launch-timeout 100 \
    --error-exitcode 9 "$@" python3 benchmarks/gpu_sanitize.py
}
ours=(--kernel-name regex=surprise_hf)

say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1)"
archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -xE '[0-9]+\.[0-9]+' | sort -u | paste -sd ';')
[ -z "$archs" ] || export TORCH_CUDA_ARCH_LIST=$archs
NVCC_APPEND_FLAGS=-lineinfo step build 400 python3 setup.py -q build_ext --inplace
# without the library every test fails the same way
if step library 120 python3 -c 'import torch, surprise_hf.ops as ops
info = ops.build_info()
assert info["cuda_library"], info["cuda_reason"]
print("torch", torch.__version__, info["cuda_library"])'; then
  step tests 300 python3 -m pytest -c "$out/pytest.ini" --rootdir=. -v --maxfail=40 -p no:cacheprovider -rP -k cuda \
    tests/ops/test_cuda.py tests/ops/test_torch_contract.py tests/ops/test_values.py tests/ops/test_search.py
  sanitize memcheck --report-api-errors no "${ours[@]}"
  step bench 200 python3 benchmarks/bench_gpu.py $quick --out "$out/bench_gpu.csv"
  ! wanted bench || [ ! -f "$out/bench.txt" ] || tee -a "$summary" <"$out/bench.txt"
  sanitize racecheck "${ours[@]}"
  sanitize synccheck "${ours[@]}"
  sanitize initcheck # of every kernel: what one that is not watched writes counts as never written
fi
! grep -qE "^[a-z]+: FAILED" "$summary"
