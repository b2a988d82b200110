// How times, counts and ratios are written in the document.

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
}

export function time(ms: number): string {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 120_000) return `${(ms / 1_000).toFixed(1)} s`;
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  return `${Math.round(ms / 3_600_000)} h`;
}

/** The median, and between what the others lie. */
export function times(values: readonly number[]): string {
  if (values.length === 1) return `${time(values[0]!)} (once)`;
  return `${time(median(values))} (${time(Math.min(...values))} to ${time(Math.max(...values))}, ${values.length} kills)`;
}

export function count(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

/** "0.13×" of ours; three digits are more than a shared machine is worth. */
export function ratio(value: number, ours: number): string {
  const share = value / ours;
  return `${share >= 10 ? Math.round(share) : share.toPrecision(2)}×`;
}
