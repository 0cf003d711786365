#!/usr/bin/env bash
# Runs everything that only a GPU can show, on one machine, and keeps the output in one folder:
#
#     tests/gpu_all.sh OUT [tests] [tune] [start] [offline] [held] [profile] [higgs] [voxcpm2] [http] [soak] [steps] [sanitize] [gate]
#                          [began] [accept8] [families8] [attention] [long]
#
# Without names all parts up to voxcpm2: kernel, parity and budget tests; tiles for this GPU; starts of the server with
# empty and warm caches; the benchmark at Qwen3-TTS 1.7B's shapes with random weights; listeners held; profiles of our
# engine and of transformers' Higgs Audio V2; the reports of the two other families. Twenty minutes on an H200 with cold
# caches. By name only: what users get over HTTP, and the same load in process (8 minutes); 1,500 listeners for five
# minutes, with all that clients do (7); steps by part in both types, passes of one row, convolutions, sound beside frames
# (6); compute-sanitizer over our attention (2); every kernel against the accepted table (4); listeners who begin at any
# time, with shared calls of the codec and without (2); a table to accept for --quantize fp8, which then belongs in
# bench/kernels/accepted (4); both other families in both types (5); attention in all its forms, compared with FlashInfer
# if that is on PYTHONPATH (3); forms for one long row (1).
# TOKENIZER names a folder with Llama 3's tokenizer.json, without which prompts of Higgs Audio V2 are single bytes and
# four times as long. If a part fails, the others still run; the last line counts failures.
set -uo pipefail
if [ $# -lt 1 ]; then
    sed -n '2,18s/^# \{0,1\}//p' "$0"
    exit 2
fi
out=$(realpath -m "$1") && shift
parts=${*:-tests tune start offline held profile higgs voxcpm2}
cd "$(dirname "$0")/.."
export PYTHONPATH="src:tests:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out"
export SONANT_FULL_MODEL=${SONANT_FULL_MODEL:-/tmp/sonant-1.7b}
export SONANT_FULL_BASE=${SONANT_FULL_BASE:-/tmp/sonant-1.7b-base}
export SONANT_FULL_HIGGS=${SONANT_FULL_HIGGS:-/tmp/sonant-higgs} SONANT_FULL_VOXCPM2=${SONANT_FULL_VOXCPM2:-/tmp/sonant-voxcpm2}
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
    start) step start 240 python3 tests/gpu_start.py "$model" --out "$out/start.json" ;;
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
    higgs)
        [ -f "$SONANT_FULL_HIGGS/config.json" ] || sonant random-model "$SONANT_FULL_HIGGS" --family higgs_audio_v2 \
            --size 3b --device cuda ${TOKENIZER:+--tokenizer-from "$TOKENIZER"}
        step higgs-bench 300 python3 tests/gpu_higgs.py --folder "$SONANT_FULL_HIGGS" --out "$out/higgs-bench.json"
        step higgs-http 240 python3 tests/gpu_kv_zero.py --folder "$SONANT_FULL_HIGGS" --out "$out/higgs-http.json"
        step higgs-prefill 90 python3 tests/gpu_dual_ffn.py --folder "$SONANT_FULL_HIGGS"
        cli higgs-profile 90 profile run "$SONANT_FULL_HIGGS" --device cuda --concurrency 16 --steps 60 \
            --assert "fills=0,cats=0,syncs=0"
        ;;
    voxcpm2)
        [ -f "$SONANT_FULL_VOXCPM2/config.json" ] ||
            sonant random-model "$SONANT_FULL_VOXCPM2" --family voxcpm2 --size 2b --device cuda
        step voxcpm2-bench 240 python3 tests/gpu_voxcpm2.py --folder "$SONANT_FULL_VOXCPM2" --out "$out/voxcpm2.json"
        for streams in 1 64; do
            cli "voxcpm2-profile-$streams" 90 profile run "$SONANT_FULL_VOXCPM2" --device cuda --concurrency $streams --steps 40
        done
        ;;
    http)
        cli in-process 150 bench offline --model "$model" --device cuda --streams 1,64,128,256 --measure streams,saturated \
            --out "$out/in-process.json"
        step http 420 python3 tests/gpu_http.py --folder "$model" --out "$out/http" --capacity 1024:2048
        ;;
    soak)
        [ -f "$SONANT_FULL_BASE/config.json" ] ||
            sonant random-model "$SONANT_FULL_BASE" --kind base --size 1.7b --device cuda ${TOKENIZER:+--tokenizer-from "$TOKENIZER"}
        step soak 480 python3 tests/serving/soak.py "$SONANT_FULL_BASE" --minutes 5 --listeners 1500 --clients 6 --frames 125 \
            --workers 6 --device cuda --voices "$out/voices"
        ;;
    steps)
        step steps-by-type 200 python3 tests/gpu_fp8.py --folder "$model" --parts steps,saturated --rows 1,64,256 \
            --out "$out/steps-by-type.json"
        step passes 120 python3 tests/gpu_pass.py
        step convolutions 90 python3 tests/gpu_conv.py
        step overlap 150 python3 tests/gpu_overlap.py --folder "$model"
        ;;
    sanitize) step sanitize 120 python3 tests/gpu_sanitizer.py ;;
    gate) cli gate 280 bench kernels --against shipped --jobs 14 --seconds 240 ;;
    accept8) cli accept8 280 bench kernels --quantize fp8 --against "$out/accepted-fp8.json" --accept --jobs 14 --seconds 240 ;;
    families8)
        [ -f "$SONANT_FULL_HIGGS/config.json" ] || sonant random-model "$SONANT_FULL_HIGGS" --family higgs_audio_v2 \
            --size 3b --device cuda ${TOKENIZER:+--tokenizer-from "$TOKENIZER"}
        [ -f "$SONANT_FULL_VOXCPM2/config.json" ] ||
            sonant random-model "$SONANT_FULL_VOXCPM2" --family voxcpm2 --size 2b --device cuda
        for family in higgs voxcpm2; do
            folder=$SONANT_FULL_HIGGS && [ $family = higgs ] || folder=$SONANT_FULL_VOXCPM2
            options=(bench offline --model "$folder" --device cuda --streams 1,16,64 --measure steps)
            cli "$family-bf16" 120 "${options[@]}" --out "$out/$family-bf16.json"
            cli "$family-fp8" 120 "${options[@]}" --quantize fp8 --out "$out/$family-fp8.json"
        done
        ;;
    began)
        step began 200 python3 tests/gpu_overlap.py --folder "$model" --parts engine --rows 16,64,128,256 --out "$out/began.json"
        ;;
    attention) LINES_SHOWN=60 step attention 400 python3 tests/gpu_attention.py --sweep ;;
    long) LINES_SHOWN=60 step long 120 python3 tests/gpu_long_row.py ;;
    *) echo "no part $part" && exit 2 ;;
    esac
done
echo "$failures failed"
exit $((failures > 0))
