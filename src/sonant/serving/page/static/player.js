// One utterance at a time: requested, played, drawn and measured while it arrives.

import { BufferPlan } from "./buffer_plan.js";
import { BufferStrip } from "./buffer_strip.js";
import { Loudspeaker } from "./playback.js";
import { SAMPLE_RATE } from "./sound.js";
import { TimeAxis } from "./time_axis.js";
import { Transport } from "./transport.js";
import { Waveform } from "./waveform.js";
import { clock, milliseconds, ratio, roughly, seconds, several } from "./words.js";

const LEAST_AXIS_S = 4; // so that the first moments do not rush over the screen
const CALM_DRAW_MS = 250; // for visitors who asked for less motion
const HICCUP_S = 0.5; // a wait that is over before its reason can be read
const SETTLED_MS = 800; // between two texts for the same state, since screen readers say them
const SHOWN = { playing: "speaking", paused: "paused", buffering: "buffering", waiting: "waiting" };

const element = (id) => document.getElementById(id);

export class Player {
  utterance = null;
  #box = element("player");
  #waveform = new Waveform(element("waveform"));
  #axis = new TimeAxis(element("axis"));
  #strip = new BufferStrip(element("buffer"));
  #loudspeaker = new Loudspeaker();
  #transport = new Transport(this);
  #plan = new BufferPlan();
  #playback = null;
  #abort = null;
  #run = 0; // counts runs: results of an earlier one are late and must not show
  #verb = "Speaking"; // what the player does, for the status
  #saidMs = 0; // when the status last changed
  #calm = matchMedia("(prefers-reduced-motion: reduce)");
  #onState;
  #onProblem;

  /**
   * `onState(state)`: waiting, speaking, buffering, paused, done, stopped or failed. `onProblem(error)` is called if
   * what its own buttons began went wrong.
   */
  constructor(onState, onProblem) {
    this.#onState = onState;
    this.#onProblem = onProblem;
    new ResizeObserver(() => this.#paint()).observe(element("waveform"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#paint());
  }

  /** Whether something is played or on its way, and can be stopped. */
  get live() {
    return Object.values(SHOWN).includes(this.#box.dataset.state);
  }

  /** As `live`, but not while all has arrived and is paused: then there is only silence to stop. */
  get busy() {
    return this.live && (this.#box.dataset.state !== "paused" || this.utterance.open);
  }

  get playedS() {
    return (this.#playback?.position ?? 0) / SAMPLE_RATE;
  }

  /** How many seconds the width of the waveform stands for. */
  get axisS() {
    const lengthS = this.utterance?.sound.seconds ?? 0;
    return (this.utterance?.open ? Math.max(lengthS, LEAST_AXIS_S) : lengthS) || LEAST_AXIS_S;
  }

  set volume(level) {
    this.#loudspeaker.volume = level;
  }

  /** Resolves when all has arrived, or the visitor stopped it; rejects with what the visitor should read. */
  async speak(utterance) {
    const run = this.#begin(utterance, "Speaking", "Waiting for the first sound …");
    const abort = (this.#abort = new AbortController());
    try {
      const arriving = utterance.stream(abort.signal, (piece) => {
        if (run !== this.#run) return;
        this.#waveform.add(piece);
        this.#playback?.arrived();
      });
      arriving.catch(() => {}); // it is awaited below, but may fail before the loudspeaker is open
      await this.#listen(utterance, run); // after the request, which need not wait for it
      await arriving;
      this.#plan.learn(utterance);
      if (run === this.#run) this.#playback.arrived();
      if (run === this.#run) this.#onState(this.#box.dataset.state); // if paused, it is not `busy` any more
    } catch (error) {
      if (run !== this.#run) return; // it was stopped
      abort.abort();
      this.#end("failed", utterance.sound.length ? `Broke off after ${seconds(this.playedS)}.` : "Nothing was said.");
      throw error;
    }
  }

  /** Play again what has arrived; the server is not asked. Rejects with what the visitor should read. */
  async replay(utterance) {
    const run = this.#begin(utterance, "Playing again", "Playing again …");
    try {
      await this.#listen(utterance, run);
    } catch (error) {
      if (run !== this.#run) return; // it was stopped
      this.#end("failed", "Nothing was played.");
      throw error;
    }
  }

  /** Play or pause, whatever the button says. */
  toggle() {
    if (this.#box.dataset.state === "paused") this.#playback.resume();
    else if (this.live) this.#playback?.pause();
    else if (this.utterance) this.replay(this.utterance).catch(this.#onProblem);
  }

  /** Move to a sample among those that have arrived. */
  seek(position) {
    if (!this.#playback) return;
    if (!this.live) this.#attend(this.#playback, this.utterance, ++this.#run); // it was over, and is taken up again
    this.#playback.seek(position);
    this.#paint();
  }

  stop() {
    if (!this.live) return;
    this.#abort?.abort();
    this.#end("stopped", `Stopped after ${seconds(this.playedS)}.`);
  }

  #begin(utterance, verb, status) {
    this.stop();
    this.#playback = null;
    this.utterance = utterance;
    this.#verb = verb;
    this.#waveform.reset(utterance.sound.part());
    this.#strip.reset();
    Object.assign(this.#box.dataset, { played: "0", gaps: "0", peak: "0" });
    this.#run += 1;
    this.#enter("waiting", status);
    return this.#run;
  }

  async #listen(utterance, run) {
    const playback = await this.#loudspeaker.open(utterance, this.#plan);
    if (run !== this.#run) return playback.stop();
    this.#playback = playback;
    this.#attend(playback, utterance, run);
    if (utterance.sound.length || !utterance.open) playback.arrived();
  }

  #attend(playback, utterance, run) {
    playback.onreport = () => {
      if (run !== this.#run) return;
      if (playback.firstSoundMs !== null) utterance.firstSoundMs ??= playback.firstSoundMs - utterance.startedMs;
      const { position, gaps, peak } = playback;
      Object.assign(this.#box.dataset, { played: `${position}`, gaps: `${gaps.length}`, peak: peak.toFixed(4) });
      this.#strip.add(position / SAMPLE_RATE, playback.aheadS);
      if (playback.state === "done") this.#end("done", this.#summary());
      else this.#follow(playback);
    };
  }

  #follow(playback) {
    const held = playback.state === "waiting" && this.utterance.sound.length > 0; // until enough has arrived
    const state = held ? "buffering" : SHOWN[playback.state];
    const status = {
      waiting: "Waiting for the first sound …",
      speaking: `${this.#verb} …`,
      paused: `Paused at ${clock(this.playedS)}.`,
      buffering: buffering(playback.waitS),
    }[state];
    const entered = state !== this.#box.dataset.state;
    const settled = performance.now() - this.#saidMs > SETTLED_MS;
    if (entered || (settled && status !== element("status").textContent)) this.#enter(state, status);
  }

  #enter(state, status) {
    const woken = !this.live;
    this.#box.dataset.state = state;
    element("status").textContent = status;
    this.#saidMs = performance.now();
    this.#transport.showState(state);
    this.#onState(state);
    if (woken && this.live) this.#draw(this.#run);
  }

  #end(state, status) {
    this.#playback?.stop();
    this.#abort = null;
    this.#run += 1;
    this.#enter(state, status);
    this.#paint();
    element("waveform").setAttribute("aria-label", `Waveform: ${this.#summary()}`);
  }

  #summary() {
    const { sound, firstSoundMs } = this.utterance;
    const gaps = this.#playback?.gaps.length ?? 0;
    const first = `the first after ${milliseconds(firstSoundMs)}`;
    return `${seconds(sound.seconds)} of sound, ${first}, ${gaps ? several(gaps, "gap") : "no gaps"}.`;
  }

  #draw(run) {
    if (run !== this.#run || !this.live) return;
    this.#paint();
    if (this.#calm.matches) setTimeout(() => this.#draw(run), CALM_DRAW_MS);
    else requestAnimationFrame(() => this.#draw(run));
  }

  #paint() {
    const { utterance, axisS } = this;
    const gaps = this.#playback?.gaps ?? [];
    this.#waveform.draw(this.playedS, axisS, gaps.map((at) => at / SAMPLE_RATE));
    this.#axis.draw(axisS);
    this.#strip.draw(axisS);
    this.#transport.show();
    if (!utterance) return;
    element("ahead").textContent = this.live && this.#playback ? milliseconds(1000 * this.#playback.aheadS) : "–";
    element("first-byte").textContent = milliseconds(utterance.firstByteMs);
    element("first-sound").textContent = milliseconds(utterance.firstSoundMs);
    element("rtf").textContent = ratio(utterance.rtf);
    element("length").textContent = seconds(utterance.sound.seconds || null);
    element("pieces").textContent = utterance.pieces || "–";
    element("gaps").textContent = this.#playback ? gaps.length : "–";
  }
}

function buffering(waitS) {
  if (waitS <= HICCUP_S || !Number.isFinite(waitS)) return "Buffering …";
  return `Buffering, about ${roughly(waitS)}: the server makes sound more slowly than it is heard.`;
}
