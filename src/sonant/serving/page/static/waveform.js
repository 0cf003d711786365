// The sound as bars: what was heard, what is here but not yet heard, the play head, and the gaps.

import { begin, colours } from "./canvas.js";
import { SAMPLE_RATE } from "./sound.js";

const PEAK_SAMPLES = SAMPLE_RATE / 100;
const BAR_PX = 3;
const SPACE_PX = 2;

export class Waveform {
  #canvas;
  #peaks = [];
  #open = 0; // the peak of the part that is not complete yet
  #count = 0;

  constructor(canvas) {
    this.#canvas = canvas;
  }

  /** Begin with the sound that there is. */
  reset(samples) {
    this.#peaks = [];
    this.#open = this.#count = 0;
    this.add(samples);
  }

  add(piece) {
    for (const sample of piece) {
      const size = Math.abs(sample) / 32768;
      if (size > this.#open) this.#open = size;
      if (++this.#count === PEAK_SAMPLES) {
        this.#peaks.push(this.#open);
        this.#open = this.#count = 0;
      }
    }
  }

  /** `axisS`: how many seconds the width stands for; `gaps`: seconds. */
  draw(playedS, axisS, gaps) {
    const { pen, width, height } = begin(this.#canvas);
    const colour = colours(this.#canvas);
    const middle = height / 2;
    const bars = Math.floor((width + SPACE_PX) / (BAR_PX + SPACE_PX));
    const peaksABar = (axisS * SAMPLE_RATE) / PEAK_SAMPLES / bars;
    const loudest = Math.max(0.1, this.#peaks.reduce((a, b) => Math.max(a, b), 0));
    for (let bar = 0; bar < bars; bar++) {
      const from = Math.floor(bar * peaksABar);
      const to = Math.max(from + 1, Math.floor((bar + 1) * peaksABar));
      let peak = from < this.#peaks.length ? 0 : null;
      for (let i = from; i < Math.min(to, this.#peaks.length); i++) peak = Math.max(peak, this.#peaks[i]);
      const heard = ((bar + 0.5) / bars) * axisS <= playedS;
      pen.fillStyle = peak === null ? colour.line : heard ? colour.accent : colour.faint;
      const half = peak === null ? 1 : Math.max(1.5, (peak / loudest) * (middle - 4));
      pen.beginPath();
      pen.roundRect(bar * (BAR_PX + SPACE_PX), middle - half, BAR_PX, 2 * half, BAR_PX / 2);
      pen.fill();
    }
    pen.fillStyle = colour.alarm;
    for (const gapS of gaps) mark(pen, (gapS / axisS) * width, height);
    if (playedS > 0 && playedS < axisS) {
      pen.fillStyle = colour.accent;
      pen.fillRect((playedS / axisS) * width, 0, 1.5, height);
    }
  }
}

/** A line with a flag, which tells it from the play head even without its colour. */
function mark(pen, x, height) {
  pen.fillRect(x - 0.75, 0, 1.5, height);
  pen.beginPath();
  pen.moveTo(x, 0);
  pen.lineTo(x + 7, 4);
  pen.lineTo(x, 8);
  pen.fill();
}
