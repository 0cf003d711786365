// The loudspeaker: one audio context and one volume for the page, one playback for each utterance that is heard.

import { ScheduledOutput } from "./scheduled_output.js";
import { SAMPLE_RATE, toFloat } from "./sound.js";
import { WorkletOutput } from "./worklet_output.js";

const FEED_S = 30; // handed to the output ahead of the play head: enough for a page in the background
const REFEED_S = 15; // the output is fed again once it has less than that
const TAKE_UP_S = 0.2;
const HELD_MS = 50; // until an output has fallen silent
const VOLUME_S = 0.01; // to change the volume smoothly

export class Loudspeaker {
  #context = null;
  #ready = null;
  #volume = null;
  #meter = null;
  #level = 1;

  /** Call it from a key press or a click: browsers keep a page silent until it is touched. */
  async open(utterance, plan) {
    this.#ready ??= this.#make().catch((error) => {
      this.#ready = null; // the next call may reach the server
      this.#context.close();
      throw error;
    });
    await Promise.all([this.#ready, this.#context.resume()]);
    return new Playback(this.#context, this.#volume, this.#meter, utterance, plan);
  }

  /** `level`: 0 … 1. */
  set volume(level) {
    this.#level = level;
    this.#volume?.gain.setTargetAtTime(level, this.#context.currentTime, VOLUME_S);
  }

  async #make() {
    const context = (this.#context = new AudioContext({ sampleRate: SAMPLE_RATE, latencyHint: "interactive" }));
    this.#volume = new GainNode(context, { gain: this.#level });
    this.#meter = new AnalyserNode(context);
    this.#volume.connect(this.#meter).connect(context.destination);
    if (WorkletOutput.supports(context)) await WorkletOutput.prepare(context);
  }
}

/** One utterance being heard. `onreport` is called whenever something has changed, and some 25 times a second. */
class Playback {
  state = "waiting"; // waiting (for the first sound) → playing ⇄ buffering or paused → done
  gaps = []; // sample positions where the sound ran out
  peak = 0; // the loudest that was heard
  waitS = Infinity; // while buffering: how long it will take, as far as is known
  firstSoundMs = null; // on the clock of performance.now()
  onreport = () => {};
  #context;
  #volume;
  #meter;
  #utterance;
  #plan;
  #output;
  #base = 0; // where the output began
  #fed = 0; // up to which sample the output has been fed
  #toldEnd = false;
  #gatheringMs = null; // since when sound is buffered
  #wave;
  #arrivedMs = null; // when the first piece was here

  constructor(context, volume, meter, utterance, plan) {
    this.#context = context;
    this.#volume = volume;
    this.#meter = meter;
    this.#utterance = utterance;
    this.#plan = plan;
    this.#wave = new Float32Array(meter.fftSize);
    this.#connect(0);
  }

  /** The sample that is heard now. */
  get position() {
    return Math.min(this.#base + Math.max(0, Math.round(this.#output.playedNow())), this.#utterance.sound.length);
  }

  get aheadS() {
    return (this.#utterance.sound.length - this.position) / SAMPLE_RATE;
  }

  /** Call it when more sound has arrived, or all has. */
  arrived() {
    this.#arrivedMs ??= performance.now();
    this.#turn();
  }

  pause() {
    if (this.state === "done") return;
    this.#output.hold();
    this.state = "paused";
    this.onreport();
  }

  resume() {
    if (this.state !== "paused") return;
    this.#context.resume(); // a phone may have suspended it in between
    this.#takeUp();
  }

  /** Move to a sample among those that have arrived. A playback that was playing goes on from there. */
  seek(position) {
    const resting = this.state === "paused" || this.state === "done";
    this.#disconnect();
    this.#connect(Math.max(0, Math.min(Math.round(position), this.#utterance.sound.length)));
    if (!resting) return this.#takeUp();
    this.state = "paused";
    this.#turn();
  }

  /** End the playback; `seek` can take it up again. */
  stop() {
    if (this.state === "done") return;
    this.state = "done";
    this.#disconnect();
  }

  #disconnect() {
    const output = this.#output;
    output.onreport = () => {};
    output.hold();
    setTimeout(() => output.close(), HELD_MS);
  }

  #connect(position) {
    const Output = WorkletOutput.supports(this.#context) ? WorkletOutput : ScheduledOutput;
    this.#output = new Output(this.#context, this.#volume);
    this.#output.onreport = () => this.#turn();
    this.#base = this.#fed = position;
    this.#toldEnd = false;
  }

  #turn() {
    const { state } = this.#output;
    this.#feed();
    if (state === "done") {
      if (this.gaps.at(-1) === this.#utterance.sound.length) this.gaps.pop(); // that was the end, and no gap
      this.stop();
    } else if (state === "dry" && this.state === "playing") {
      this.gaps.push(this.position);
      this.#gather();
    }
    if (this.state === "waiting" || this.state === "buffering") this.#consider();
    if (this.state === "playing") this.#listen();
    this.onreport();
  }

  /** Play at once what has arrived, since the visitor asked for it; the plan applies once that has run out. */
  #takeUp() {
    this.#feed();
    if (this.aheadS >= TAKE_UP_S) this.#go();
    else this.#gather();
    this.#turn();
  }

  #go() {
    this.#output.go();
    this.state = "playing";
  }

  #gather() {
    this.state = "buffering";
    this.#gatheringMs = performance.now();
  }

  #consider() {
    const first = this.state === "waiting";
    if (first && !this.#utterance.sound.length && this.#utterance.open) return;
    this.#gatheringMs ??= performance.now();
    const waitedS = (performance.now() - this.#gatheringMs) / 1000;
    this.waitS = this.#plan.waitS(this.#utterance, this.aheadS, { waitedS, first });
    if (this.waitS === 0) this.#go();
  }

  #feed() {
    const { sound, open } = this.#utterance;
    const { position } = this;
    if (this.#fed < sound.length && this.#fed - position < REFEED_S * SAMPLE_RATE) {
      const part = sound.part(this.#fed, position + FEED_S * SAMPLE_RATE);
      this.#fed += part.length;
      this.#output.push(toFloat(part));
    }
    if (open || this.#toldEnd || this.#fed < sound.length) return;
    this.#toldEnd = true;
    this.#output.end();
  }

  #listen() {
    this.#meter.getFloatTimeDomainData(this.#wave);
    this.peak = this.#wave.reduce((most, sample) => Math.max(most, Math.abs(sample)), this.peak);
    if (this.#output.startedAt !== null) this.firstSoundMs ??= this.#whenHeard(this.#output.startedAt);
  }

  /** The two clocks agree only to some milliseconds, but nothing is heard before it has arrived. */
  #whenHeard(contextS) {
    const { contextTime, performanceTime } = this.#context.getOutputTimestamp();
    return Math.max(this.#arrivedMs ?? 0, performanceTime + 1000 * (contextS - contextTime));
  }
}
