// Figures as people read them.

export function milliseconds(ms) {
  if (ms === null || !Number.isFinite(ms)) return "–";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 10_000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

export function seconds(s) {
  return s === null ? "–" : `${s.toFixed(s < 10 ? 2 : 1)} s`;
}

/** A place in a sound, in whole seconds. */
export function clock(s) {
  const whole = Math.floor(s);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

/** Roughly how long ago something was. */
export function span(s) {
  if (s < 90) return `${Math.max(1, Math.round(s))} s`;
  return s < 5400 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`;
}

/** A rough estimate of how long something will take, in steps, so that screen readers do not repeat it all the time. */
export function roughly(s) {
  return `${s <= 5 ? Math.max(1, Math.ceil(s)) : 5 * Math.ceil(s / 5)} s`;
}

export function ratio(value) {
  if (value === null) return "–";
  return value < 0.1 ? value.toFixed(3) : value.toFixed(2);
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; count >= 1024 && unit < units.length - 1; unit++) count /= 1024;
  return `${count.toFixed(count < 10 && unit ? 1 : 0)} ${units[unit]}`;
}

export function several(count, noun) {
  return `${counted(count)} ${noun}${count === 1 ? "" : "s"}`;
}

export function counted(count) {
  return count.toLocaleString("en");
}
