// The engine's current state: polled once a second, and not at all while the page is hidden.

import { json } from "./api.js";
import { Sparkline } from "./sparkline.js";
import { bytes, counted, milliseconds, ratio, several, span } from "./words.js";

const PAUSE_MS = 1000;

/**
 * Each: its name, its meaning for those who have never heard the word, the value that the line follows, and the large
 * and the small text. `null` as a value: not known.
 */
const TILES = [
  {
    name: "Streams",
    meaning:
      "How many texts are being spoken at this moment. A row is a place for one of them; when all are taken, the " +
      "next ones wait.",
    value: (s) => s.running ?? null,
    large: (s) => `${s.running}`,
    small: (s) => `of ${s.rows} rows, ${s.waiting} waiting`,
  },
  {
    name: "First sound",
    meaning:
      "How long a listener waits from the request to the first sound, also called TTFP, time to first packet: half " +
      "of the listeners wait no longer than this, and 99 of 100 no longer than the small figure.",
    value: (s) => s.recent.ttfp_p50_s,
    large: (s) => milliseconds(1000 * s.recent.ttfp_p50_s),
    small: (s) => `99 %: ${milliseconds(1000 * s.recent.ttfp_p99_s)}`,
  },
  {
    name: "RTF",
    meaning:
      "Real-time factor: seconds of work for one second of sound. Below 1 the sound is made faster than it is " +
      "heard; above 1 a listener has to wait in between.",
    value: (s) => s.recent.rtf_p50,
    large: (s) => ratio(s.recent.rtf_p50),
    small: (s) => several(s.recent.requests, "request"),
  },
  {
    name: "Sound",
    meaning:
      "Seconds of sound made in one second, for all listeners together: 20 s would be enough for twenty of them.",
    value: (s) => (s.ready ? s.recent.audio_s_per_s : null),
    large: (s) => `${s.recent.audio_s_per_s.toFixed(1)} s`,
    small: () => "made each second",
  },
  {
    name: "Step",
    meaning:
      "The engine works in steps, and each adds a sliver of sound to every stream. This is how long one takes, and " +
      "which part of it takes longest.",
    value: (s) => s.recent.step_s,
    large: (s) => milliseconds(1000 * s.recent.step_s),
    small: (s) => longest(s.recent.step_phases_s),
  },
  {
    name: "Batch",
    meaning:
      "Batch rows: how many streams moved on together in one step. The more of them share a step, the less each one " +
      "costs.",
    value: (s) => s.recent.batch_rows,
    large: (s) => s.recent.batch_rows.toFixed(1),
    small: (s) => `rows, ${s.recent.steps_per_s.toFixed(0)} steps/s`,
  },
  {
    name: "KV cache",
    meaning:
      "The model’s memory of what each stream has said so far (its keys and values), kept in KV blocks of equal " +
      "size. When all are taken, new streams wait.",
    value: (s) => (s.blocks ? (s.blocks - s.free_blocks) / s.blocks : null),
    large: (s) => `${Math.round((100 * (s.blocks - s.free_blocks)) / s.blocks)} %`,
    small: (s) => `${counted(s.blocks - s.free_blocks)} of ${several(s.blocks, "block")}`,
  },
  {
    name: "Weights",
    meaning:
      "The model is larger than its graphics processor’s memory, so parts of it come from the computer’s own when they " +
      "are needed: the share of a step that waits for them, and how much comes each second.",
    optional: true,
    value: (s) => s.recent.weight_wait_share ?? null,
    large: (s) => `${Math.round(100 * s.recent.weight_wait_share)} %`,
    small: (s) => `of a step waits; ${bytes(s.recent.paged_bytes_per_s)}/s`,
  },
  {
    name: "GPU memory",
    meaning: "Memory of the graphics processor that is taken, by this server and by others.",
    optional: true,
    value: (s) => s.gpu?.memory_used_bytes ?? null,
    large: (s) => bytes(s.gpu.memory_used_bytes),
    small: (s) => `of ${bytes(s.gpu.memory_total_bytes)}`,
  },
  {
    name: "GPU at work",
    meaning:
      "The share of the time in which the graphics processor was computing, what power it draws, and how warm it " +
      "is.",
    optional: true,
    value: (s) => s.gpu?.utilisation_ratio ?? null,
    large: (s) => `${Math.round(100 * s.gpu.utilisation_ratio)} %`,
    small: (s) => {
      const { power_watts: watts, temperature_celsius: degrees } = s.gpu; // which not every GPU measures
      return [watts != null && `${Math.round(watts)} W`, degrees != null && `${Math.round(degrees)} °C`]
        .filter(Boolean)
        .join(", ");
    },
  },
  {
    name: "Turned away",
    meaning:
      "Requests that were refused because the server had too much to do already; they are told when to try again.",
    value: (s) => s.recent.rejected,
    large: (s) => counted(s.recent.rejected),
    small: (s) => (s.restarts ? `engine reloaded ${several(s.restarts, "time")}` : "requests"),
  },
];

export class EnginePanel {
  #tiles;
  #window;
  #trouble;
  #onReady;
  #wanted = false;
  #round = 0; // of polling: a loop of an earlier round ends

  /** `onReady(true or false)` is called with each answer. */
  constructor({ list, meanings, window, trouble, onReady }) {
    this.#window = window;
    this.#trouble = trouble;
    this.#onReady = onReady;
    this.#tiles = TILES.map((tile) => ({ tile, ...makeTile(list, tile), meaning: makeMeaning(meanings, tile) }));
    document.addEventListener("visibilitychange", () => this.#arrange());
  }

  start() {
    this.#wanted = true;
    this.#arrange();
  }

  stop() {
    this.#wanted = false;
    this.#arrange();
  }

  #arrange() {
    this.#round += 1;
    if (this.#wanted && !document.hidden) this.#poll(this.#round);
  }

  async #poll(round) {
    while (round === this.#round) {
      try {
        this.#show(await json("engine/stats", { cache: "no-store" }));
      } catch (error) {
        this.#onReady(false);
        say(this.#trouble, error.message);
        if (error.status === 401 || error.status === 403) return this.stop(); // until there is another key
      }
      await new Promise((wake) => setTimeout(wake, PAUSE_MS));
    }
  }

  #show(stats) {
    this.#onReady(stats.ready);
    say(this.#trouble, stats.ready ? "" : `Not ready: ${stats.trouble}.`);
    say(this.#window, `in the last ${span(stats.recent.window_s)}`);
    for (const { tile, large, small, line, box, meaning } of this.#tiles) {
      const value = tile.value(stats);
      box.hidden = meaning.hidden = value === null && Boolean(tile.optional);
      box.classList.toggle("unknown", value === null);
      say(large, value === null ? "–" : tile.large(stats));
      say(small, value === null ? "" : tile.small(stats));
      line.add(value);
    }
  }
}

function longest(phases) {
  const [name, s] = Object.entries(phases).reduce((most, next) => (next[1] > most[1] ? next : most));
  return `${name} ${milliseconds(1000 * s)}`;
}

function makeTile(list, tile) {
  const box = make("div", "unknown");
  const name = make("dt", "", tile.name);
  name.title = tile.meaning;
  const large = make("dd", "large", "–");
  const small = make("dd", "small");
  const spark = make("dd", "spark");
  spark.setAttribute("aria-hidden", "true");
  const canvas = make("canvas", "");
  spark.append(canvas);
  box.append(name, large, small, spark);
  list.append(box);
  return { box, large, small, line: new Sparkline(canvas) };
}

function makeMeaning(list, tile) {
  const box = make("div", "");
  box.append(make("dt", "", tile.name), make("dd", "", tile.meaning));
  list.append(box);
  return box;
}

function make(tag, className, textContent = "") {
  return Object.assign(document.createElement(tag), { className, textContent });
}

/** Write the text only if it changed: a live region would say it again. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
