// The loudspeaker: one audio context for the page, one worklet node for each utterance.

export const SAMPLE_RATE = 24000; // of response_format=pcm
const REFILL_S = 0.2;
const FADE_S = 0.01; // a sound that is cut off clicks

export class Loudspeaker {
  #context = null;
  #module = null;

  /** Call it from a key press or a click: browsers keep pages silent that nobody has touched. */
  async open() {
    this.#context ??= new AudioContext({ sampleRate: SAMPLE_RATE, latencyHint: "interactive" });
    this.#module ??= this.#context.audioWorklet.addModule(new URL("playback_worklet.js", import.meta.url));
    await Promise.all([this.#module, this.#context.resume()]);
    return new Playback(this.#context);
  }
}

/** One utterance being heard. `report` is the worklet's last word, and `onreport` is called with each. */
class Playback {
  report = { state: "waiting", played: 0, peak: 0, gaps: [], startedAt: null };
  onreport = () => {};
  firstSoundMs = null; // on the clock of performance.now()
  #context;
  #node;
  #gain;
  #pushedMs = null; // when the first piece came
  #reportedMs = 0;

  constructor(context) {
    this.#context = context;
    const processorOptions = { refillSamples: REFILL_S * SAMPLE_RATE };
    this.#node = new AudioWorkletNode(context, "playback", {
      numberOfInputs: 0,
      outputChannelCount: [1],
      processorOptions,
    });
    this.#gain = new GainNode(context);
    this.#node.connect(this.#gain).connect(context.destination);
    this.#node.port.onmessage = ({ data }) => this.#take(data);
  }

  /** Samples of −1 … 1; they are handed over and must not be used again. */
  push(samples) {
    this.#pushedMs ??= performance.now();
    this.#node.port.postMessage(samples, [samples.buffer]);
  }

  end() {
    this.#node.port.postMessage("end");
  }

  stop() {
    this.#node.port.onmessage = null;
    this.#gain.gain.setTargetAtTime(0, this.#context.currentTime, FADE_S / 3);
    setTimeout(() => this.#release(), 3000 * FADE_S);
  }

  /** Samples heard by now: reports come every 40 ms, a screen is drawn more often. */
  playedNow() {
    const { state, played } = this.report;
    if (state !== "playing") return played;
    return played + ((performance.now() - this.#reportedMs) / 1000) * SAMPLE_RATE;
  }

  #take(report) {
    this.report = report;
    this.#reportedMs = performance.now();
    if (report.startedAt !== null) this.firstSoundMs ??= this.#whenHeard(report.startedAt);
    this.onreport(report);
    if (report.state === "done") this.#release();
  }

  /** The two clocks agree to some milliseconds only, but nothing is heard before it is here. */
  #whenHeard(contextS) {
    const { contextTime, performanceTime } = this.#context.getOutputTimestamp();
    return Math.max(this.#pushedMs, performanceTime + 1000 * (contextS - contextTime));
  }

  #release() {
    this.#node.disconnect();
    this.#gain.disconnect();
  }
}
