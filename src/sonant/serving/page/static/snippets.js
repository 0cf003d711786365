// The request on the screen as code that sends it from elsewhere.

const OPENAI_FIELDS = new Set(["model", "input", "voice", "response_format", "speed", "instructions"]);

/** `fields`: name → JSON text of its value. `keyed`: whether the server asks for a key, which is never shown. */
export const snippets = {
  curl(fields, root, keyed) {
    const lines = [
      `curl ${quoted(`${root}/audio/speech`)} \\`,
      ...(keyed ? ['  -H "Authorization: Bearer $SONANT_API_KEY" \\'] : []),
      "  -H 'Content-Type: application/json' \\",
      `  -d ${quoted(object({ ...fields, response_format: '"wav"' }))} \\`,
      "  -o speech.wav",
    ];
    return lines.join("\n");
  },

  python(fields, root, keyed) {
    const own = Object.entries(fields).filter(([name]) => OPENAI_FIELDS.has(name));
    const extra = Object.entries(fields).filter(([name]) => !OPENAI_FIELDS.has(name));
    const lines = own.map(([name, value]) => `    ${name}=${value},`);
    if (!fields.voice) lines.push('    voice="alloy",  # the client insists on one');
    if (extra.length) lines.push(`    extra_body=${object(Object.fromEntries(extra))},`);
    return [
      ...(keyed ? ["import os", ""] : []),
      "from openai import OpenAI",
      "",
      `client = OpenAI(base_url=${JSON.stringify(`${root}`)}, api_key=${keyed ? 'os.environ["SONANT_API_KEY"]' : '"none"'})`,
      "with client.audio.speech.with_streaming_response.create(",
      '    model="tts-1",',
      ...lines,
      ") as response:",
      "    for piece in response.iter_bytes():  # 16-bit samples, 24 kHz, mono",
      '        print(len(piece), "bytes")',
    ].join("\n");
  },

  javascript(fields, root, keyed) {
    const key = keyed ? ", Authorization: `Bearer ${apiKey}`" : "";
    return [
      `const response = await fetch(${JSON.stringify(`${root}/audio/speech`)}, {`,
      '  method: "POST",',
      `  headers: { "Content-Type": "application/json"${key} },`,
      `  body: ${JSON.stringify(object(fields))},`,
      "});",
      "if (!response.ok) throw new Error((await response.json()).error.message);",
      "for await (const bytes of response.body) {",
      "  console.log(bytes.length); // 16-bit samples, 24 kHz, mono",
      "}",
    ].join("\n");
  },
};

/** JSON, made by hand because a seed may be larger than JavaScript's numbers are exact. */
export function object(fields) {
  return `{${Object.entries(fields).map(([name, value]) => `${JSON.stringify(name)}: ${value}`).join(", ")}}`;
}

/** For a POSIX shell: nothing within is special but the quote itself. */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
