// What the bench says at the end: one line of JSON for programs, or a table with bars for people.
import { type Figure, met, reach, round, type Target } from "./figure.ts";

export interface Report {
  readonly store: string;
  readonly quick: boolean;
  readonly figures: readonly Figure[];
  /** Metrics that could not be measured. */
  readonly failed: readonly string[];
}

/** What does not apply is left out. */
export function jsonLine({ store, quick, figures, failed }: Report): string {
  return JSON.stringify({ store, quick, metrics: figures.map(asJson), ...(failed.length > 0 && { failed }) });
}

function asJson(figure: Figure): object {
  const { name, unit, ours, floor, base, peers, targets, limits = [], detail } = figure;
  const bestPeer = peers && Math.max(...Object.values(peers));
  return {
    name,
    ours: round(ours),
    ...(floor !== undefined && { floor: round(floor), ofFloor: round(ours / floor) }),
    ...(peers &&
      bestPeer !== undefined && {
        peers: Object.fromEntries(Object.entries(peers).map(([peer, rate]) => [peer, round(rate)])),
        overBestPeer: round(ours / bestPeer),
      }),
    ...(base && { base: base.what, baseValue: round(base.value), ofBase: round(ours / base.value) }),
    unit,
    ...(targets.length > 0 && { target: targets.map(({ text }) => text).join(", "), ok: targets.every(met) }),
    ...(limits.length > 0 && { limit: limits.map(({ text }) => text).join(", "), kept: limits.every(met) }),
    ...Object.fromEntries(
      Object.entries(detail).map(([key, value]) => [key, typeof value === "number" ? round(value) : value]),
    ),
  };
}

export function table({ store, quick, figures, failed }: Report): string {
  const rows = figures.map(cells);
  const head = ["metric", "ours", "held against", "ratio", "target", ""];
  const widths = head.map((title, i) => Math.max(title.length, ...rows.map((row) => row[i]!.length)));
  const line = (row: readonly string[]): string =>
    row
      .map((cell, i) => cell.padEnd(widths[i]!))
      .join("  ")
      .trimEnd();
  return [
    `Outlive on ${store}${quick ? ", quick: small counts" : ""}. Ratios are of one run; absolute figures belong to this machine and moment.`,
    "",
    line(head),
    ...figures.map((figure, i) => `${line(rows[i]!)}\n    ${details(figure)}`),
    "",
    ...failed.map((name) => `${name} could not be measured; the reason is above.`),
    "The bar is full at twice the target; the mark in its middle is the target.",
  ].join("\n");
}

export function missed(figures: readonly Figure[]): string[] {
  return figures.flatMap(({ name, targets }) => notMet(name, targets));
}

export function broken(figures: readonly Figure[]): string[] {
  return figures.flatMap(({ name, limits = [] }) => notMet(name, limits));
}

function notMet(name: string, targets: readonly Target[]): string[] {
  return targets
    .filter((target) => !met(target))
    .map(({ text, value }) => `${name}: ${text}, but it is ${round(value)}`);
}

function cells({ name, unit, ours, floor, base, targets }: Figure): string[] {
  const against = floor ?? base?.value;
  return [
    name,
    `${grouped(ours)} ${unit}`,
    floor === undefined ? (base ? `${base.what} ${grouped(base.value)}` : "") : `floor ${grouped(floor)}`,
    against === undefined
      ? ""
      : ours / against >= 2
        ? `${round(ours / against)} x`
        : `${Math.round((100 * ours) / against)} %`,
    targets.map(({ text }) => text).join(", "),
    worst(targets),
  ];
}

const HALF = 10;

function worst(targets: readonly Target[]): string {
  if (targets.length === 0) return "";
  const least = Math.min(...targets.map(reach));
  const filled = Math.round(Math.min(2, least) * HALF);
  const bar = "█".repeat(filled).padEnd(2 * HALF, "·");
  return `${bar.slice(0, HALF)}│${bar.slice(HALF)} ${targets.every(met) ? "met" : "MISSED"}`;
}

function details({ peers = {}, detail }: Figure): string {
  return Object.entries({ ...peers, ...detail })
    .map(([key, value]) => `${key} ${typeof value === "number" ? grouped(value) : value}`)
    .join(", ");
}

function grouped(value: number): string {
  return round(value).toLocaleString("en-US", { maximumFractionDigits: 6 });
}
