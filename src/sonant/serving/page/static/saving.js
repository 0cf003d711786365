// Saves an utterance as a file on the visitor's machine.

import { ServerError, call } from "./api.js";
import { object } from "./snippets.js";
import { SAMPLE_RATE } from "./sound.js";
import { wavFile } from "./wav.js";

const NAME_CHARS = 40;

export function saveWav(utterance) {
  save(wavFile(utterance.sound.part(), SAMPLE_RATE), `${nameOf(utterance)}.wav`);
}

/** Have the server make it once more, from the same seed: browsers cannot write MP3. */
export async function saveMp3(utterance) {
  const { sample_rate: _, ...fields } = utterance.fields; // a file may have the model's own rate
  const body = object({ ...fields, response_format: '"mp3"', seed: utterance.seed });
  const headers = { "content-type": "application/json" };
  const response = await call("audio/speech", { method: "POST", body, headers });
  save(await whole(response), `${nameOf(utterance)}.mp3`);
}

async function whole(response) {
  try {
    return await response.blob();
  } catch {
    throw new ServerError("The connection broke off before the file was whole. Try again.", 0);
  }
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function nameOf({ text }) {
  return text.slice(0, NAME_CHARS).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "") || "speech";
}
