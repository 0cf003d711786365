// What was said on this page since it was opened, to be heard and saved again. It is kept in memory only.

import { saveMp3, saveWav } from "./saving.js";
import { clock } from "./words.js";

const MOST = 30;
const MOST_S = 2400; // of sound in all, about 115 MB

export class History {
  #card = document.getElementById("history");
  #list = document.getElementById("said");
  #kept = []; // { utterance, item }, the newest first
  #onPlay;
  #onProblem;

  /** `onPlay(utterance)` is called to play one again, `onProblem(error)` if a file could not be made. */
  constructor({ onPlay, onProblem }) {
    this.#onPlay = onPlay;
    this.#onProblem = onProblem;
    document.getElementById("forget").addEventListener("click", () => this.#forget());
  }

  /** Add an utterance that will not grow any more. */
  add(utterance) {
    if (!utterance.sound.length || this.#kept.some((entry) => entry.utterance === utterance)) return;
    const item = this.#item(utterance);
    this.#list.prepend(item);
    this.#kept.unshift({ utterance, item });
    let totalS = 0;
    const stays = ({ utterance: { sound } }, i) => (totalS += sound.seconds) <= MOST_S && i < MOST;
    const keep = Math.max(1, this.#kept.filter(stays).length);
    for (const { item: old } of this.#kept.splice(keep)) old.remove();
    this.#card.hidden = false;
  }

  #forget() {
    this.#kept = [];
    this.#list.replaceChildren();
    this.#card.hidden = true;
  }

  #item(utterance) {
    const item = make("li");
    const cut = utterance.whole ? "" : ", broken off";
    const about = `${utterance.voice ? `${utterance.voice}, ` : ""}${clock(utterance.sound.seconds)}${cut}`;
    const tools = make("p", { className: "tools" });
    tools.append(
      this.#button("Play", utterance, () => this.#onPlay(utterance)),
      this.#button("WAV", utterance, () => saveWav(utterance)),
    );
    if (utterance.whole && utterance.seed) tools.append(this.#button("MP3", utterance, () => saveMp3(utterance)));
    const words = make("p", { className: "words", textContent: utterance.text, title: utterance.text, dir: "auto" });
    item.append(words, make("p", { className: "hint", textContent: about }), tools);
    return item;
  }

  #button(name, utterance, act) {
    const button = make("button", { type: "button", className: "quiet", textContent: name });
    button.setAttribute("aria-label", `${name === "Play" ? name : `Save as ${name}`}: ${utterance.text.slice(0, 60)}`);
    button.addEventListener("click", () => whileBusy(button, act).catch(this.#onProblem));
    return button;
  }
}

/** Disable the button until `act` is done: making a file takes as long as speaking does. */
export async function whileBusy(button, act) {
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  try {
    await act();
  } finally {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
}

function make(tag, properties = {}) {
  return Object.assign(document.createElement(tag), properties);
}
