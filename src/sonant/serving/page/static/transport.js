// The controls of the player: play and pause, stop, position, volume.

import { SAMPLE_RATE } from "./sound.js";
import { clock, seconds } from "./words.js";

const JUMPS_S = { ArrowLeft: -2, ArrowDown: -2, ArrowRight: 2, ArrowUp: 2, PageDown: -10, PageUp: 10 };
const LABELS = { speaking: "Pause", buffering: "Pause", waiting: "Pause", paused: "Play" };

const element = (id) => document.getElementById(id);

export class Transport {
  #player;
  #play = element("play");
  #stop = element("stop");
  #seek = element("seek");
  #dragging = false; // the visitor holds the slider: playback must not move it

  constructor(player) {
    this.#player = player;
    this.#play.addEventListener("click", () => player.toggle());
    this.#stop.addEventListener("click", () => player.stop());
    this.#seek.addEventListener("input", () => {
      this.#dragging = true;
      this.#showTime(Number(this.#seek.value));
    });
    this.#seek.addEventListener("change", () => this.#jump(Number(this.#seek.value)));
    for (const over of ["pointerup", "pointercancel"]) document.addEventListener(over, () => this.#release());
    this.#seek.addEventListener("keydown", (event) => {
      if (!(event.key in JUMPS_S)) return;
      event.preventDefault();
      this.#jump(player.playedS + JUMPS_S[event.key]);
    });
    element("waveform").addEventListener("click", (event) => {
      const fraction = event.offsetX / event.currentTarget.clientWidth;
      if (!this.#seek.disabled) this.#jump(fraction * player.axisS);
    });
    element("volume").addEventListener("input", () => this.#setVolume());
    this.#setVolume(); // some browsers keep the slider's value when a page is reloaded
  }

  /** Call it after every change of state. */
  showState(state) {
    const length = this.#player.utterance?.sound.length ?? 0;
    this.#play.textContent = LABELS[state] ?? (length ? "Play again" : "Play");
    this.#play.disabled = !(state in LABELS) && !length;
    this.#stop.disabled = !(state in LABELS);
    this.#seek.disabled = !length;
  }

  /** Call it as often as the waveform is drawn. */
  show() {
    const { playedS, axisS, utterance } = this.#player;
    this.#seek.disabled = !utterance?.sound.length;
    if (this.#dragging) return;
    this.#seek.max = axisS.toFixed(2);
    this.#seek.value = playedS;
    this.#showTime(playedS);
  }

  /** Runs after the `change` event that may follow; going back to where the drag began causes none. */
  #release() {
    if (this.#dragging) setTimeout(() => (this.#dragging = false));
  }

  #setVolume() {
    const volume = element("volume");
    this.#player.volume = Number(volume.value) / Number(volume.max);
    volume.setAttribute("aria-valuetext", `${volume.value} %`);
  }

  #jump(toS) {
    this.#dragging = false;
    this.#player.seek(toS * SAMPLE_RATE);
  }

  #showTime(playedS) {
    const lengthS = this.#player.utterance?.sound.seconds ?? 0;
    element("time").textContent = `${clock(Math.min(playedS, lengthS))} / ${clock(lengthS)}`;
    this.#seek.setAttribute("aria-valuetext", `${seconds(Math.min(playedS, lengthS))} of ${seconds(lengthS)}`);
  }
}
