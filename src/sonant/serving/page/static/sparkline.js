// The last two minutes of one figure, as a line.

import { begin, colours } from "./canvas.js";

const POINTS = 120;

export class Sparkline {
  #canvas;
  #values = [];

  constructor(canvas) {
    this.#canvas = canvas;
  }

  /** `null`: the value at this moment is not known, and the line has a hole there. */
  add(value) {
    this.#values.push(value);
    if (this.#values.length > POINTS) this.#values.shift();
    this.#draw();
  }

  #draw() {
    const { pen, width, height } = begin(this.#canvas);
    const colour = colours(this.#canvas);
    const top = this.#values.reduce((most, value) => Math.max(most, value ?? 0), 0);
    pen.fillStyle = colour.line;
    pen.fillRect(0, height - 1, width, 1);
    if (top === 0) return;
    pen.strokeStyle = colour.accent;
    pen.lineWidth = 1.5;
    pen.lineJoin = "round";
    pen.beginPath();
    let drawing = false;
    this.#values.forEach((value, i) => {
      if (value === null) {
        drawing = false;
        return;
      }
      const x = width - ((this.#values.length - 1 - i) / (POINTS - 1)) * width;
      const y = height - 1.5 - (value / top) * (height - 4);
      if (drawing) pen.lineTo(x, y);
      else pen.moveTo(x, y);
      drawing = true;
    });
    pen.stroke();
  }
}
