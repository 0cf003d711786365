#!/usr/bin/env bash
# Runs all stages that need the GPU, side by side as far as possible, on a machine that is lent by the minute:
#
#     training/all_stages.sh /tmp/teachers /tmp/work runs/today 4 8 9 4
#
# The arguments: unpacked teachers, a folder for what need not come home, one for what should, and the minutes for corpus,
# codec, talker and, at the end, the decoder, which learns from what the talker puts in place of the corpus's codes. The
# talker begins beside the codec, once its codes are final.
#
# CODEC=folder is a codec's state from an earlier run (its `codec` or `blend`): the codec continues from it, and begins anew
# without it. With 0 minutes for the codec that one stays as it is, and so do its codes: the talker then continues from the
# voice that ships, which must have that codec. KEPT_CODES=folder has the codes of an earlier corpus: the talker then learns
# those at once, and the new ones as well as soon as they are there. FIRST=n is the first sentence of the new corpus, and
# CORPUS_FLAGS says who reads it (training.corpus --help). Each stage leaves something complete.
set -euo pipefail
if [ $# -ne 7 ]; then
    sed -n '2,14s/^# \{0,1\}//p' "$0"
    exit 2
fi
teachers=$1 work=$2 out=$3 corpus_minutes=$4 codec_minutes=$5 talker_minutes=$6 decoder_minutes=$7
codec=${CODEC:-}
if [ "$codec_minutes" = 0 ] && [ -z "$codec" ]; then
    echo "0 minutes for the codec need CODEC=folder, a codec's state: the voice that ships has no encoder to make codes with" >&2
    exit 2
fi
cd "$(dirname "$0")/.."
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$work" "$out"

share_gpu() { # by MPS: processes then run on the GPU at the same time instead of taking turns
    command -v nvidia-cuda-mps-control > /dev/null || return 0
    nvidia-cuda-mps-control -d || return 0
    timeout 60 python3 -c "import torch; torch.ones(1, device='cuda').sum().item()" || echo quit | nvidia-cuda-mps-control
}
stage() { # a name, then a module and its arguments; its output goes to $out/NAME.log
    local name=$1 && shift
    echo "$(date +%T) $name"
    python3 -m "$@" >> "$out/$name.log" 2>&1 || { echo "$(date +%T) $name FAILED at $1: see $out/$name.log" >&2 && return 1; }
}

codes() { # the corpus's codes, made with the codec's checkpoint
    stage codes training.codec.export --checkpoint "$codec" --out "$out/speech_tokenizer"
    stage codes training.encode --corpus "$work/corpus" --codec "$out/speech_tokenizer" --checkpoint "$codec" \
        --out "$out/codes" --flat "$work/codes.npy"
}
corpus() {
    # shellcheck disable=SC2086
    stage corpus training.corpus --teachers "$teachers" --out "$work/corpus" --minutes "$corpus_minutes" \
        --first "${FIRST:-0}" ${CORPUS_FLAGS:---kokoro-processes 5 --workers 6}
}
talker() { # codes, speech_tokenizer, then options that say where to continue from
    stage talker training.talker.train --codes "$1" --codec "$2" --state "$work/talker" --out "$out/talker" --compile \
        --no-listen --minutes "$talker_minutes" --total-minutes "$talker_minutes" "${@:3}"
}

shipped=(--resume src/sonant/voices/english --again)
rm -rf "$work/more" "$work/more.part" # of an earlier run
touch "$work/begun"
beside=
share_gpu
if [ "$codec_minutes" != 0 ]; then
    corpus
    stage codec training.codec.train --corpus "$work/corpus" --state "$work/codec" --out "$out/codec" \
        --minutes "$codec_minutes" --total-minutes "$codec_minutes" ${codec:+--resume "$codec" --again} &
    beside=$! codec=$out/codec/frozen
    until [ "$codec" -nt "$work/begun" ]; do # an earlier run's may lie there
        kill -0 "$beside" 2> /dev/null || break
        sleep 1
    done
    [ "$codec" -nt "$work/begun" ] || wait "$beside"
    codes
    talker "$out/codes" "$out/speech_tokenizer"
elif [ -n "${KEPT_CODES:-}" ]; then
    stage codes training.codec.export --checkpoint "$codec" --out "$work/speech_tokenizer"
    talker "$KEPT_CODES" "$work/speech_tokenizer" "${shipped[@]}" --more-codes "$work/more" &
    beside=$!
    corpus
    codes
    cp -r "$out/codes" "$work/more.part"
    mv "$work/more.part" "$work/more" # appears whole, since the talker reads it at once
else
    corpus
    codes
    talker "$out/codes" "$out/speech_tokenizer" "${shipped[@]}"
fi
[ -z "$beside" ] || wait "$beside"
[ "$codec_minutes" = 0 ] || codec=$out/codec # which was trained further meanwhile
stage guesses training.export --checkpoint "$out/talker" --codec "$out/speech_tokenizer" --out "$work/voice"
stage guesses training.guess --voice "$work/voice" --corpus "$work/corpus" --codes "$work/codes.npy" --out "$work/guesses.npy"
stage decoder training.codec.train --corpus "$work/corpus" --state "$work/decoder" --out "$out/decoder" --frozen \
    --resume "$codec" --again --guesses "$work/guesses.npy" --minutes "$decoder_minutes" --total-minutes "$decoder_minutes"
stage decoder training.codec.blend "$codec" "$out/decoder" --share 0.8 --out "$out/blend"
stage decoder training.codec.export --checkpoint "$out/blend" --out "$out/speech_tokenizer"
stage decoder training.export --checkpoint "$out/talker" --codec "$out/speech_tokenizer" --out "$out/voice"
