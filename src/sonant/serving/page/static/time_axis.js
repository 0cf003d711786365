// The seconds under the waveform.

import { begin, colours } from "./canvas.js";
import { clock } from "./words.js";

const STEPS_S = [0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600];
const LEAST_STEP_PX = 56;
const MINUTE_S = 60;
const TICK_PX = 4;

export class TimeAxis {
  #canvas;

  constructor(canvas) {
    this.#canvas = canvas;
  }

  draw(axisS) {
    const { pen, width, height } = begin(this.#canvas);
    const colour = colours(this.#canvas);
    const stepS = STEPS_S.find((step) => (step / axisS) * width >= LEAST_STEP_PX) ?? axisS;
    pen.font = colour.font;
    pen.textBaseline = "bottom";
    for (let s = 0; s <= axisS; s += stepS) {
      const x = (s / axisS) * width;
      const text = axisS < MINUTE_S ? `${s} s` : clock(s);
      const wide = pen.measureText(text).width;
      pen.fillStyle = colour.line;
      pen.fillRect(Math.min(x, width - 1), 0, 1, TICK_PX);
      pen.fillStyle = colour.soft;
      pen.fillText(text, Math.max(0, Math.min(x - wide / 2, width - wide)), height);
    }
  }
}
