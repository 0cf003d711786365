// How much sound was buffered at each position of the play head, under the waveform and on its axis.

import { begin, colours } from "./canvas.js";

const LEAST_STEP_S = 0.02;
const FULL_S = 4; // of buffered sound fill the strip; more looks the same

export class BufferStrip {
  #canvas;
  #points = []; // [play head, buffered], seconds

  constructor(canvas) {
    this.#canvas = canvas;
  }

  reset() {
    this.#points = [];
  }

  add(playedS, aheadS) {
    while (this.#points.length && this.#points.at(-1)[0] > playedS) this.#points.pop(); // the play head was set back
    const last = this.#points.at(-1);
    if (!last || playedS - last[0] >= LEAST_STEP_S || aheadS === 0) this.#points.push([playedS, aheadS]);
  }

  draw(axisS) {
    const { pen, width, height } = begin(this.#canvas);
    const colour = colours(this.#canvas);
    pen.fillStyle = colour.line;
    pen.fillRect(0, height - 1, width, 1);
    if (this.#points.length < 2) return;
    const x = (s) => (s / axisS) * width;
    const y = (s) => height - 1 - Math.sqrt(Math.min(1, s / FULL_S)) * (height - 2); // a root, to stretch the low end
    pen.beginPath();
    pen.moveTo(x(this.#points[0][0]), height);
    for (const [playedS, aheadS] of this.#points) pen.lineTo(x(playedS), y(aheadS));
    pen.lineTo(x(this.#points.at(-1)[0]), height);
    pen.closePath();
    pen.fillStyle = colour.faint;
    pen.fill();
  }
}
