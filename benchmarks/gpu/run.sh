#!/bin/bash
# All of the GPU's part, unattended: tests, speed tables, then the replications with convolutional networks.
# benchmarks/gpu/run.sh [OUT]     OUT (gpu-out) keeps what is finished; started again with the same OUT it goes on.
# MINUTES=40 in all; DEVICE=cpu QUICK=1 rehearses it; JOBS=8 runs at a time; SEEDS="1 2 3 4 5".
# NAMES="..." runs other experiments; without, those of which no numbers are in docs/results.
# On a new machine, put the packed results of the last one at OUT/results.tar.gz first.
set -u
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd)
mkdir -p "${1:-gpu-out}" && out=$(cd "${1:-gpu-out}" && pwd) || exit 1
device=${DEVICE:-cuda}; end=$(( $(date +%s) + 60 * ${MINUTES:-40} )); jobs=${JOBS:-8}; quick=${QUICK:+--quick}
work=${WORK:-/tmp/flsel-gpu}; python=${PYTHON:-python3}
left() { echo $(( end - $(date +%s) - 60 )); }         # a minute is kept for packing
say() { echo "$(date +%H:%M:%S) $*" | tee -a "$out/log.txt"; }

mkdir -p "$work/site" "$work/comparisons"
"$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$work/site" "$here"/bundle/*.whl || exit 1
[ -d "$work/data/MNIST" ] || { mkdir -p "$work/data" && tar -C "$work/data" -xzf "$here/bundle/data.tar.gz"; } || exit 1
export PYTHONPATH=$root:$work/site FLSEL_DATA=$work/data OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
[ -f "$out/results.tar.gz" ] && tar -C "$work" -xzf "$out/results.tar.gz"
cd "$root" || exit 1
"$python" -c "import flsel, torch; assert torch.cuda.is_available() or '$device' == 'cpu'" || exit 1

pack() {
    (cd "$work" && find comparisons -type f ! -name '*.png' ! -path '*/checkpoints/*' | tar -czf "$out/results.tmp" -T -) \
        && mv "$out/results.tmp" "$out/results.tar.gz"
    say "packed $(find "$work/comparisons" -name summary.json | wc -l) finished runs"
}
trap 'say stopped; trap "" TERM; kill 0; wait; pack; exit 143' TERM INT

once() {                                               # NAME SECONDS COMMAND...: skipped when it has succeeded before
    name=$1; limit=$2; shift 2
    [ -e "$out/$name.done" ] && return
    [ "$(left)" -lt 30 ] && { say "$name: no time left"; return; }
    [ "$limit" -gt "$(left)" ] && limit=$(left)
    # Waited for, since bash looks at signals only between commands; in the foreground, where kill 0 reaches it.
    timeout --foreground -k 10 "$limit" "$@" > "$out/$name.txt" 2>&1 &
    if wait $!; then touch "$out/$name.done"; say "$name: done"; else say "$name: exit code $?, see $name.txt"; fi
}

say "start on $device, $(left) s"
FLSEL_DEVICE=$device once tests 420 "$python" -m pytest -q -p no:cacheprovider -n 0 tests/test_cuda.py
once trainers 360 "$python" benchmarks/trainers.py --accelerator "$device" $quick
once shell 120 "$python" benchmarks/shell.py --accelerator "$device" $quick
once selection 240 "$python" benchmarks/overhead.py --accelerator "$device" $quick

one() {                                                # EXPERIMENT SEED
    folder=$work/comparisons/s$2
    timeout --foreground -k 20 "$(left)" "$python" benchmarks/evidence.py "$1" --seeds "$2..$2" --folder "$folder" \
        --device "$device" --no-report $quick >> "$out/$1.txt" 2>&1
    say "$1, seed $2: exit code $?"
}
for seed in ${SEEDS:-1 2 3 4 5}; do
    for name in ${NAMES:-hics_written hics_published_3 fedcat_cnn_more fedpns_cnn_more hics_published_more}; do
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
        [ "$(left)" -gt 30 ] && one "$name" "$seed" &
    done
    pack
done
wait
pack
say "end"
