// WAV files from 16-bit samples, mono.

const HEAD_BYTES = 44;

export function wavFile(samples, sampleRate) {
  return new Blob([head(2 * samples.length, sampleRate), samples], { type: "audio/wav" });
}

function head(dataBytes, sampleRate) {
  const view = new DataView(new ArrayBuffer(HEAD_BYTES));
  const word = (at, text) => [...text].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  word(0, "RIFF");
  view.setUint32(4, HEAD_BYTES - 8 + dataBytes, true);
  word(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, sampleRate, true);
  view.setUint32(28, 2 * sampleRate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  word(36, "data");
  view.setUint32(40, dataBytes, true);
  return view.buffer;
}
