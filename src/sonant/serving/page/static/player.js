// One utterance at a time: asked for, heard, drawn and measured while it comes.

import { BufferStrip } from "./buffer_strip.js";
import { Loudspeaker, SAMPLE_RATE } from "./playback.js";
import { Utterance, toFloat } from "./utterance.js";
import { Waveform } from "./waveform.js";
import { milliseconds, ratio, seconds, several } from "./words.js";

const LEAST_AXIS_S = 4; // so that the first moments do not rush over the screen
const CALM_DRAW_MS = 250; // for who asked for less motion

const element = (id) => document.getElementById(id);

export class Player {
  utterance = null;
  #box = element("player");
  #waveform = new Waveform(element("waveform"));
  #strip = new BufferStrip(element("buffer"));
  #loudspeaker = new Loudspeaker();
  #playback = null;
  #abort = null;
  #run = 0; // what belongs to an earlier one is late and must not show
  #calm = matchMedia("(prefers-reduced-motion: reduce)");
  #onState;

  /** `onState(state)`: waiting, speaking, done, stopped or failed. */
  constructor(onState) {
    this.#onState = onState;
    new ResizeObserver(() => this.#paint()).observe(element("waveform"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#paint());
  }

  get busy() {
    return this.#box.dataset.state === "waiting" || this.#box.dataset.state === "speaking";
  }

  /** Resolves when all has arrived, or it was stopped; rejects with what the visitor should read. */
  async speak(body) {
    const run = this.#begin(new Utterance(), "Waiting for the first sound …");
    const abort = (this.#abort = new AbortController());
    const { utterance } = this;
    try {
      const early = [];
      const hear = (piece) => (this.#playback ? this.#playback.push(toFloat(piece)) : early.push(piece));
      const arriving = utterance.stream(body, abort.signal, (piece) => {
        this.#waveform.add(piece);
        hear(piece);
      });
      arriving.catch(() => {}); // it is awaited below, but may fail before the loudspeaker is open
      const playback = await this.#loudspeaker.open(); // after the request, which need not wait for it
      if (run !== this.#run) return;
      this.#listen(playback, run);
      early.forEach(hear);
      await arriving;
      playback.end();
    } catch (error) {
      if (run !== this.#run || error.name === "AbortError") return;
      abort.abort();
      this.#end("failed", utterance.samples ? `Broke off after ${seconds(this.#playedS())}.` : "Nothing was said.");
      throw error;
    }
  }

  async again() {
    const run = this.#begin(this.utterance, "Playing again …");
    const playback = await this.#loudspeaker.open();
    if (run !== this.#run) return;
    for (const piece of this.utterance.pieces) this.#waveform.add(piece);
    this.#listen(playback, run);
    for (const piece of this.utterance.pieces) playback.push(toFloat(piece));
    playback.end();
  }

  stop() {
    if (!this.busy) return;
    this.#abort?.abort();
    this.#end("stopped", `Stopped after ${seconds(this.#playedS())}.`);
  }

  #begin(utterance, status) {
    this.stop();
    this.utterance = utterance;
    this.#playback = null;
    this.#waveform.reset();
    this.#strip.reset();
    Object.assign(this.#box.dataset, { played: "0", gaps: "0", peak: "0" });
    this.#enter("waiting", status);
    this.#run += 1;
    this.#draw(this.#run);
    return this.#run;
  }

  #listen(playback, run) {
    const { utterance } = this;
    this.#playback = playback;
    playback.onreport = (report) => {
      if (run !== this.#run) return;
      if (playback.firstSoundMs !== null) utterance.firstSoundMs ??= playback.firstSoundMs - utterance.startedMs;
      Object.assign(this.#box.dataset, {
        played: `${report.played}`,
        gaps: `${report.gaps.length}`,
        peak: report.peak.toFixed(4),
      });
      if (report.startedAt !== null && this.#box.dataset.state === "waiting") this.#enter("speaking", "Speaking …");
      this.#strip.add(report.played / SAMPLE_RATE, this.#aheadS());
      if (report.state === "done") this.#end("done", this.#summary());
    };
  }

  #enter(state, status) {
    this.#box.dataset.state = state;
    element("status").textContent = status;
    this.#onState(state);
  }

  #end(state, status) {
    if (state !== "done") this.#playback?.stop();
    this.#abort = null;
    this.#enter(state, status);
    this.#run += 1;
    this.#paint();
    element("waveform").setAttribute("aria-label", `Waveform: ${this.#summary()}`);
  }

  #summary() {
    const gaps = this.#playback?.report.gaps.length ?? 0;
    const length = seconds(this.utterance.seconds);
    return `${length} of sound, the first after ${milliseconds(this.utterance.firstSoundMs)}, ${gaps ? several(gaps, "gap") : "no gaps"}.`;
  }

  #playedS() {
    const played = this.#playback?.playedNow() ?? 0;
    return Math.min(played, this.utterance?.samples ?? 0) / SAMPLE_RATE;
  }

  #aheadS() {
    return Math.max(0, this.utterance.seconds - this.#playedS());
  }


  #draw(run) {
    if (run !== this.#run) return;
    this.#paint();
    if (this.#calm.matches) setTimeout(() => this.#draw(run), CALM_DRAW_MS);
    else requestAnimationFrame(() => this.#draw(run));
  }

  #paint() {
    const utterance = this.utterance;
    const gaps = this.#playback?.report.gaps ?? [];
    const lengthS = utterance?.seconds ?? 0;
    const axisS = utterance?.ended || this.#box.dataset.state === "stopped" ? lengthS : Math.max(lengthS, LEAST_AXIS_S);
    this.#waveform.draw(this.#playedS(), axisS || LEAST_AXIS_S, gaps.map((at) => at / SAMPLE_RATE));
    this.#strip.draw(axisS || LEAST_AXIS_S);
    if (!utterance) return;
    element("ahead").textContent = this.busy ? milliseconds(1000 * this.#aheadS()) : "–";
    element("first-byte").textContent = milliseconds(utterance.firstByteMs);
    element("first-sound").textContent = milliseconds(utterance.firstSoundMs);
    element("rtf").textContent = ratio(utterance.rtf);
    element("length").textContent = seconds(lengthS || null);
    element("pieces").textContent = utterance.pieces.length || "–";
    element("gaps").textContent = this.#playback ? gaps.length : "–";
  }
}
