// One measured figure: ours, what it is held against, and whether the target is met. Only ratios of one run mean something on a
// shared machine, so whatever has a floor or a base is judged by the ratio.

export type Unit =
  | "jobs/s"
  | "rows/s"
  | "requests/s"
  | "queries/s"
  | "B"
  | "KB"
  | "ms"
  | "commands/s"
  | "MB"
  | "MB/s"
  | "% of a core"
  | "µs of CPU";

export interface Target {
  /** As people read it: "≥ 60 % of the floor". */
  readonly text: string;
  /** What is judged, and the limit it must keep. */
  readonly value: number;
  readonly atLeast?: number;
  readonly atMost?: number;
}

export interface Figure {
  readonly name: string;
  readonly unit: Unit;
  readonly ours: number;
  /** The least that the store itself needs for the same, measured in the same run. */
  readonly floor?: number;
  /** Something else of our own that ours is held against: the small drain, one process, one by one. */
  readonly base?: { readonly what: string; readonly value: number };
  readonly peers?: Readonly<Record<string, number>>;
  readonly targets: readonly Target[];
  /** What must hold on any machine, however busy: far from what is measured, so that only a real loss breaks it. CI judges these. */
  readonly limits?: readonly Target[];
  /** Counts, percentiles, and how it was measured. */
  readonly detail: Readonly<Record<string, number | string>>;
}

export function met(target: Target): boolean {
  return target.value >= (target.atLeast ?? -Infinity) && target.value <= (target.atMost ?? Infinity);
}

/** 1: the limit is just kept; 2: twice as good. */
export function reach(target: Target): number {
  if (target.atLeast !== undefined) return target.value / target.atLeast;
  return target.value === 0 ? Infinity : (target.atMost ?? 0) / target.value;
}

export function median(values: readonly number[]): number {
  return percentile(values, 50);
}

/** The nearest rank: a value that was measured. */
export function percentile(values: readonly number[], percent: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil((percent / 100) * sorted.length) - 1)] ?? Number.NaN;
}

/** Three significant digits: more would be noise. */
export function round(value: number): number {
  return Number(value.toPrecision(3));
}
