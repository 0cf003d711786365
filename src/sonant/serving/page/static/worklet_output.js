// Plays sound through an AudioWorklet: exact, but browsers have none for pages that came over plain HTTP.

import { unreachable } from "./api.js";

export class WorkletOutput {
  state = "held"; // held, playing, dry, done
  played = 0; // samples
  startedAt = null; // when the first of them was played, on the context's clock
  onreport = () => {};
  #node;
  #reportedMs = 0;
  #turn = 0; // see the worklet

  static supports(context) {
    return Boolean(context.audioWorklet && window.AudioWorkletNode);
  }

  /** Call it once for a context, before its first output. */
  static async prepare(context) {
    try {
      await context.audioWorklet.addModule(new URL("playback_worklet.js", import.meta.url));
    } catch {
      throw unreachable(); // the browser's AbortError would read as if the visitor had stopped it
    }
  }

  constructor(context, destination) {
    this.#node = new AudioWorkletNode(context, "playback", { numberOfInputs: 0, outputChannelCount: [1] });
    this.#node.connect(destination);
    this.#node.port.onmessage = ({ data }) => this.#take(data);
  }

  /** Play samples of −1 … 1; they are transferred and must not be used again. */
  push(samples) {
    this.#node.port.postMessage(samples, [samples.buffer]);
  }

  /** No more will be pushed. */
  end() {
    this.#node.port.postMessage("end");
  }

  go() {
    this.#tell("go", "playing");
  }

  hold() {
    this.played = this.playedNow();
    this.#tell("hold", "held");
  }

  close() {
    this.#node.port.onmessage = null;
    this.#node.port.postMessage("close");
    this.#node.disconnect();
  }

  /** Extrapolated, since reports come every 40 ms and the screen is drawn more often. */
  playedNow() {
    if (this.state !== "playing") return this.played;
    return this.played + ((performance.now() - this.#reportedMs) / 1000) * this.#node.context.sampleRate;
  }

  #tell(message, state) {
    this.#turn += 1;
    this.state = state;
    this.#reportedMs = performance.now();
    this.#node.port.postMessage(message);
  }

  #take({ turn, state, played, startedAt }) {
    if (turn !== this.#turn) return;
    this.#reportedMs = performance.now();
    Object.assign(this, { state, played, startedAt });
    this.onreport();
  }
}
