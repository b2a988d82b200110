// Old against new: medians, their ratio, and how far the ratio can be trusted. Pure.
import { median, round } from "../figure.ts";
import type { StoreName } from "../stores/tested-store.ts";
import type { AgainstName } from "./metrics.ts";

/** CPU of one measurement, in µs per job. */
export interface Cost {
  readonly node: number;
  /** Of the database server; 0 on SQLite, which has none. */
  readonly server: number;
}

/** Both sides of one round. */
export interface Pair {
  readonly old: Cost;
  readonly new: Cost;
}

export interface Comparison {
  readonly store: StoreName;
  readonly name: AgainstName;
  readonly jobs: number;
  /** Medians of node and server together, in µs of CPU per job. */
  readonly old: number;
  readonly new: number;
  /** How many times the CPU of old new needs. */
  readonly ratio: number;
  /** The 95 % interval of the ratio. */
  readonly low: number;
  readonly high: number;
  readonly pairs: readonly Pair[];
}

const RESAMPLES = 2_000;

export function compare(
  { store, name, jobs }: Pick<Comparison, "store" | "name" | "jobs">,
  pairs: readonly Pair[],
): Comparison {
  const ratios = resampled(pairs)
    .map(ratioOf)
    .toSorted((a, b) => a - b);
  return {
    store,
    name,
    jobs,
    old: median(pairs.map((pair) => total(pair.old))),
    new: median(pairs.map((pair) => total(pair.new))),
    ratio: ratioOf(pairs),
    low: ratios[Math.floor(0.025 * RESAMPLES)]!,
    high: ratios[Math.ceil(0.975 * RESAMPLES) - 1]!,
    pairs,
  };
}

/** The interval of fewer rounds than these says nothing. */
const LEAST_ROUNDS = 5;

/** Whether this tree needs at most `limit` times the CPU, and whether the interval leaves no doubt about it. */
export function verdict({ ratio, low, high, pairs }: Comparison, limit: number): { ok: boolean; certain: boolean } {
  const ok = ratio <= limit;
  return { ok, certain: pairs.length >= LEAST_ROUNDS && (ok ? high <= limit : low > limit) };
}

export interface AgainstReport {
  readonly revision: string;
  readonly commit: string;
  readonly rounds: number;
  readonly quick: boolean;
  readonly limit: number;
  readonly comparisons: readonly Comparison[];
}

export function isKept({ comparisons, limit }: AgainstReport): boolean {
  return comparisons.every((one) => verdict(one, limit).ok);
}

export function againstJson(report: AgainstReport): string {
  const { revision, commit, rounds, quick, limit, comparisons } = report;
  return JSON.stringify({
    against: { revision, commit },
    rounds,
    quick,
    limit,
    ok: isKept(report),
    metrics: comparisons.map((one) => ({
      store: one.store,
      name: one.name,
      unit: "µs of CPU per job",
      jobs: one.jobs,
      old: round(one.old),
      new: round(one.new),
      ratio: fourDigits(one.ratio),
      low: fourDigits(one.low),
      high: fourDigits(one.high),
      ...verdict(one, limit),
      oldRounds: one.pairs.map((pair) => rounded(pair.old)),
      newRounds: one.pairs.map((pair) => rounded(pair.new)),
    })),
  });
}

export function againstTable(report: AgainstReport): string {
  const { revision, commit, rounds, quick, limit, comparisons } = report;
  const head = ["store", "metric", "old", "new", "ratio", "95 % interval", `at most ${limit}`];
  const rows = comparisons.map((one) => [
    one.store,
    one.name,
    shown(one.pairs.map((pair) => pair.old)),
    shown(one.pairs.map((pair) => pair.new)),
    one.ratio.toFixed(3),
    `${one.low.toFixed(3)} to ${one.high.toFixed(3)}`,
    worded(one, limit),
  ]);
  const widths = head.map((title, i) => Math.max(title.length, ...rows.map((row) => row[i]!.length)));
  const line = (row: readonly string[]): string =>
    row
      .map((cell, i) => cell.padEnd(widths[i]!))
      .join("  ")
      .trimEnd();
  const missed = comparisons.filter((one) => !verdict(one, limit).ok).map(({ store, name }) => `${name} on ${store}`);
  return [
    `µs of CPU per job (Node + server), old = ${revision} (${commit.slice(0, 7)}), new = this tree; medians of ${rounds} interleaved ${rounds === 1 ? "round" : "rounds"}${quick ? ", quick: small counts, so the figures show nothing" : ""}.`,
    "",
    line(head),
    ...rows.map(line),
    "",
    missed.length === 0
      ? `Kept: no metric needs more than ${limit} times the CPU of ${revision}.`
      : `Exceeded: ${missed.join(", ")} ${missed.length === 1 ? "needs" : "need"} more than ${limit} times the CPU of ${revision}.`,
  ].join("\n");
}

function worded(one: Comparison, limit: number): string {
  const { ok, certain } = verdict(one, limit);
  return `${ok ? "kept" : "EXCEEDED"}${certain ? "" : ", not certain"}`;
}

/** "41.2 + 18.9", Node and server; one number where there is no server. */
function shown(costs: readonly Cost[]): string {
  const node = median(costs.map((cost) => cost.node));
  const server = median(costs.map((cost) => cost.server));
  const all = median(costs.map(total));
  return server === 0 ? String(round(all)) : `${round(all)} (Node ${round(node)}, server ${round(server)})`;
}

/** The median of the rounds' own ratios, not the ratio of the medians: the machine may be slower in one round than in the next. */
function ratioOf(pairs: readonly Pair[]): number {
  return median(pairs.map((pair) => total(pair.new) / total(pair.old)));
}

/** Rounds drawn with replacement, for the interval. */
function resampled(pairs: readonly Pair[]): Pair[][] {
  const next = numbers();
  return Array.from({ length: RESAMPLES }, () => pairs.map(() => pairs[Math.floor(next() * pairs.length)]!));
}

/** From 0 to 1, the same ones in every run (mulberry32), so that the same figures have the same interval. */
function numbers(): () => number {
  let state = 1;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

function total({ node, server }: Cost): number {
  return node + server;
}

function rounded({ node, server }: Cost): Cost {
  return { node: round(node), server: round(server) };
}

function fourDigits(value: number): number {
  return Number(value.toPrecision(4));
}
