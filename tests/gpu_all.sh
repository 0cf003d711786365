#!/usr/bin/env bash
# Everything that only a GPU can show, on one machine, with what it prints in one folder:
#
#     tests/gpu_all.sh OUT [tests] [tune] [offline] [held] [profile]
#
# All of it, or the parts named: kernel, parity and budget tests; tiles for this GPU; the benchmark at the 1.7B model's
# shapes with random weights; listeners held; profiles of our engine and of transformers' Higgs Audio V2. Ten minutes on an
# H200 with cold caches. A part that fails does not keep the others from running; the last line counts failures.
set -uo pipefail
if [ $# -lt 1 ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
fi
out=$(realpath -m "$1") && shift
parts=${*:-tests tune offline held profile}
cd "$(dirname "$0")/.."
export PYTHONPATH="src:tests:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out"
export SONANT_FULL_MODEL=${SONANT_FULL_MODEL:-/tmp/sonant-1.7b}
model=$SONANT_FULL_MODEL
failures=0

sonant() { python3 -m sonant.cli.main "$@"; }
step() { # name, seconds at most, command
    echo "== $1 ($(date +%T))"
    timeout "$2" "${@:3}" > "$out/$1.txt" 2>&1 || { failures=$((failures + 1)); echo "FAILED: $1"; }
    tail -n "${LINES_SHOWN:-14}" "$out/$1.txt" | cut -c1-200
}
cli() { step "$1" "$2" python3 -m sonant.cli.main "${@:3}"; }

[ -f "$model/config.json" ] || sonant random-model "$model" --size 1.7b --device cuda
for part in $parts; do
    case $part in
    tests)
        step kernels 150 python3 -m pytest tests/kernels/test_triton*.py -n 12 -q
        step engine 200 python3 -m pytest tests/parity tests/engine tests/test_voice.py -m gpu -n 8 -q
        ;;
    tune) cli tune 200 bench kernels --tune --tune-seconds 120 --out "$out/tiles.json" ;;
    offline)
        cli startup 120 bench offline --model "$model" --device cuda --streams 64 --measure startup
        cli streams 200 bench offline --model "$model" --device cuda --streams 1,16,64,128,256 \
            --measure streams,saturated --out "$out/streams.json"
        cli steps 200 bench offline --model "$model" --device cuda --streams 1,64,256 --measure steps --out "$out/steps.json"
        ;;
    held)
        cli held 300 bench offline --model "$model" --device cuda --streams 768 --measure held --held-start 600 \
            --held-most 768 --out "$out/held.json"
        ;;
    profile)
        cli ours 120 profile run "$model" --device cuda --concurrency 16 --steps 60 --out "$out/ours" --save "$out/ours.json"
        step higgs 120 python3 tests/profiling/trace_higgs.py --out "$out/higgs" --frames 30
        cli higgs-report 90 profile read "$out"/higgs/timing.json.gz --mapping "$out"/higgs/mapping.json.gz \
            --save "$out/higgs.json"
        ;;
    *) echo "no part $part" && exit 2 ;;
    esac
done
echo "$failures failed"
exit $((failures > 0))
