// Plays sound as buffers that are started one after the other: for pages that came over plain HTTP from another
// machine, where browsers have no AudioWorklet. Its interface and behaviour are those of WorkletOutput.

import { SAMPLE_RATE } from "./sound.js";

const TICK_MS = 40;
const LEAD_S = 0.02; // for the first buffer to reach the audio thread
const FADE_S = 0.01; // since a sound that is cut off clicks

export class ScheduledOutput {
  state = "held"; // held, playing, dry, done
  played = 0; // samples
  startedAt = null; // when the first of them was played, on the context's clock
  onreport = () => {};
  #context;
  #destination;
  #pieces = []; // { buffer, from }: those not yet played to their ends; `from` is the position of the first sample
  #pushed = 0;
  #ended = false;
  #anchorAt = 0; // the time at which sample `#anchor` is heard
  #anchor = 0;
  #gain = null; // of all buffers scheduled since the last `go`
  #sources = new Set();
  #timer;

  constructor(context, destination) {
    this.#context = context;
    this.#destination = destination;
    this.#timer = setInterval(() => this.#tick(), TICK_MS);
  }

  push(samples) {
    this.#settle(); // the output may have run dry since the last tick
    const buffer = this.#context.createBuffer(1, samples.length, SAMPLE_RATE);
    buffer.copyToChannel(samples, 0);
    const piece = { buffer, from: this.#pushed };
    this.#pieces.push(piece);
    this.#pushed += samples.length;
    if (this.state === "playing") this.#schedule(piece);
  }

  end() {
    this.#ended = true;
  }

  go() {
    if (this.state === "playing") return;
    this.state = "playing";
    this.#anchor = this.played;
    this.#anchorAt = this.#context.currentTime + LEAD_S;
    this.#gain = new GainNode(this.#context);
    this.#gain.connect(this.#destination);
    for (const piece of this.#pieces) this.#schedule(piece);
    if (this.#pieces.length) this.startedAt ??= this.#anchorAt;
  }

  hold() {
    this.#settle();
    if (this.state !== "playing") return;
    this.state = "held";
    this.#silence();
  }

  close() {
    clearInterval(this.#timer);
    if (this.state === "playing") this.#silence();
    this.state = "held";
  }

  playedNow() {
    if (this.state !== "playing") return this.played;
    const since = Math.max(0, this.#context.currentTime - this.#anchorAt);
    return Math.min(this.#pushed, this.#anchor + Math.round(since * SAMPLE_RATE));
  }

  #tick() {
    this.#settle();
    if (this.state === "done") clearInterval(this.#timer);
    this.onreport();
  }

  #settle() {
    if (this.state !== "playing") return;
    this.played = this.playedNow();
    while (this.#pieces.length && end(this.#pieces[0]) <= this.played) this.#pieces.shift();
    if (this.played < this.#pushed) return;
    this.state = this.#ended ? "done" : "dry";
  }

  #schedule(piece) {
    const skipped = Math.max(0, this.#anchor - piece.from);
    const source = new AudioBufferSourceNode(this.#context, { buffer: piece.buffer });
    source.connect(this.#gain);
    source.onended = () => this.#sources.delete(source);
    const at = this.#anchorAt + (piece.from + skipped - this.#anchor) / SAMPLE_RATE;
    source.start(at, skipped / SAMPLE_RATE);
    this.#sources.add(source);
  }

  #silence() {
    const now = this.#context.currentTime;
    this.#gain.gain.setTargetAtTime(0, now, FADE_S / 3);
    for (const source of this.#sources) source.stop(now + FADE_S);
    this.#sources.clear();
  }
}

function end(piece) {
  return piece.from + piece.buffer.length;
}
