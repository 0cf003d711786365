// The engine as it is now: asked once a second, and not at all while nobody looks.

import { json } from "./api.js";
import { Sparkline } from "./sparkline.js";
import { bytes, milliseconds, ratio, several, span } from "./words.js";

const PAUSE_MS = 1000;

/** Each: its name, what the line follows, what is written large, and what small. `null` as a value: not known. */
const TILES = [
  {
    name: "Streams",
    value: (s) => s.running ?? null,
    large: (s) => `${s.running}`,
    small: (s) => `of ${s.rows} rows, ${s.waiting} waiting`,
  },
  {
    name: "First sound",
    title: "From a request to its first sound on the wire: the median, and what 99 of 100 do not exceed",
    value: (s) => s.recent.ttfp_p50_s,
    large: (s) => milliseconds(1000 * s.recent.ttfp_p50_s),
    small: (s) => `99 %: ${milliseconds(1000 * s.recent.ttfp_p99_s)}`,
  },
  {
    name: "RTF",
    title: "Seconds of work for a second of sound: the median of requests that ended",
    value: (s) => s.recent.rtf_p50,
    large: (s) => ratio(s.recent.rtf_p50),
    small: (s) => several(s.recent.requests, "request"),
  },
  {
    name: "Sound",
    title: "Seconds of sound made in a second: how many listeners could be served",
    value: (s) => (s.ready ? s.recent.audio_s_per_s : null),
    large: (s) => `${s.recent.audio_s_per_s.toFixed(1)} s`,
    small: () => "made each second",
  },
  {
    name: "Step",
    title: "Mean time of an engine step, and what most of it went to",
    value: (s) => s.recent.step_s,
    large: (s) => milliseconds(1000 * s.recent.step_s),
    small: (s) => longest(s.recent.step_phases_s),
  },
  {
    name: "Batch",
    title: "Rows that drew a frame in a step, mean",
    value: (s) => s.recent.batch_rows,
    large: (s) => s.recent.batch_rows.toFixed(1),
    small: (s) => `rows, ${s.recent.steps_per_s.toFixed(0)} steps/s`,
  },
  {
    name: "KV cache",
    value: (s) => (s.blocks ? (s.blocks - s.free_blocks) / s.blocks : null),
    large: (s) => `${Math.round((100 * (s.blocks - s.free_blocks)) / s.blocks)} %`,
    small: (s) => `${s.blocks - s.free_blocks} of ${several(s.blocks, "block")}`,
  },
  {
    name: "GPU memory",
    optional: true,
    value: (s) => s.gpu?.memory_used_bytes ?? null,
    large: (s) => bytes(s.gpu.memory_used_bytes),
    small: (s) => `of ${bytes(s.gpu.memory_total_bytes)}`,
  },
  {
    name: "GPU at work",
    title: "Share of the time in which a kernel ran",
    optional: true,
    value: (s) => s.gpu?.utilisation_ratio ?? null,
    large: (s) => `${Math.round(100 * s.gpu.utilisation_ratio)} %`,
    small: (s) => `${Math.round(s.gpu.power_watts)} W, ${Math.round(s.gpu.temperature_celsius)} °C`,
  },
  {
    name: "Turned away",
    value: (s) => s.recent.rejected,
    large: (s) => `${s.recent.rejected}`,
    small: (s) => (s.restarts ? `engine reloaded ${several(s.restarts, "time")}` : "requests"),
  },
];

export class EnginePanel {
  #tiles;
  #window;
  #trouble;
  #onReady;
  #wanted = false;
  #round = 0; // of asking: a loop that is not of this round ends

  /** `onReady(true or false)` is called with each answer. */
  constructor({ list, window, trouble, onReady }) {
    this.#window = window;
    this.#trouble = trouble;
    this.#onReady = onReady;
    this.#tiles = TILES.map((tile) => ({ tile, ...makeTile(list, tile) }));
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
        if (error.status === 401) return this.stop();
      }
      await new Promise((wake) => setTimeout(wake, PAUSE_MS));
    }
  }

  #show(stats) {
    this.#onReady(stats.ready);
    say(this.#trouble, stats.ready ? "" : `Not ready: ${stats.trouble}.`);
    say(this.#window, `in the last ${span(stats.recent.window_s)}`);
    for (const { tile, large, small, line, box } of this.#tiles) {
      const value = tile.value(stats);
      box.hidden = value === null && Boolean(tile.optional);
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
  const make = (tag, className) => Object.assign(document.createElement(tag), { className });
  const box = make("div", "unknown");
  const name = make("dt", "");
  name.textContent = tile.name;
  if (tile.title) name.title = tile.title;
  const large = make("dd", "large");
  large.textContent = "–";
  const small = make("dd", "small");
  const spark = make("dd", "spark");
  spark.setAttribute("aria-hidden", "true");
  const canvas = make("canvas", "");
  spark.append(canvas);
  box.append(name, large, small, spark);
  list.append(box);
  return { box, large, small, line: new Sparkline(canvas) };
}

/** Only when it changed: a live region would say it again. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
