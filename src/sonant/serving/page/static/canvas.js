// Drawing on a canvas in CSS pixels, sharp on any screen, in the colours of the style sheet.

/** A cleared context and its size. The element's size is the style sheet's business. */
export function begin(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  const wide = Math.round(width * ratio);
  const high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

export function colours(canvas) {
  const style = getComputedStyle(canvas);
  const named = (name) => style.getPropertyValue(name).trim();
  const [accent, faint, line, alarm, soft] = ["accent", "faint", "line", "alarm", "soft"].map((c) => named(`--${c}`));
  return { accent, faint, line, alarm, soft, font: `12px ${style.fontFamily}` };
}
