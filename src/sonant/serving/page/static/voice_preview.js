// A short sentence in a voice, made when it is first requested and then kept.

import { Utterance } from "./utterance.js";

const SEED = "1"; // the same each time, so that voices can be compared
const SENTENCES = {
  english: "Hello! This is how I sound when I read to you.",
  chinese: "你好！我读给你听的时候，声音就是这样的。",
  japanese: "こんにちは。わたしの声はこんな感じです。",
  korean: "안녕하세요. 제 목소리는 이렇게 들려요.",
  german: "Hallo! So klinge ich, wenn ich dir vorlese.",
  french: "Bonjour ! Voici ma voix quand je lis pour vous.",
  russian: "Привет! Так звучит мой голос, когда я читаю.",
  portuguese: "Olá! É assim que eu soo quando leio para você.",
  spanish: "¡Hola! Así suena mi voz cuando leo para ti.",
  italian: "Ciao! Ecco come suono quando leggo per te.",
};

export class VoicePreview {
  #kept = new Map();
  #made = new WeakSet(); // all previews, including those that were stopped and then made anew

  made(utterance) {
    return this.#made.has(utterance);
  }

  /** A preview that can be played at once, or one yet to be requested. `fields`: those of the form, as JSON texts. */
  utterance(fields, { model, languages }, voiceName) {
    const chosen = fields.language ? JSON.parse(fields.language) : null;
    const language = [chosen, "english", ...languages].find((name) => name in SENTENCES) ?? "english";
    const key = `${model} ${fields.voice} ${language}`;
    const kept = this.#kept.get(key);
    if (kept?.whole) return kept;
    const { voice, response_format, sample_rate } = fields;
    const input = JSON.stringify(SENTENCES[language]);
    const wanted = { input, voice, response_format, sample_rate, language: chosen && fields.language, seed: SEED };
    const given = Object.entries(wanted).filter(([, value]) => value);
    const utterance = new Utterance(Object.fromEntries(given), voiceName);
    this.#kept.set(key, utterance);
    this.#made.add(utterance);
    return utterance;
  }
}
