// `npm run bench`: runs the metrics one after the other, never two at once, and prints what they found.
import { mkdirSync } from "node:fs";
import { resolve } from "node:path";
import { CheckoutError } from "../../scripts/checkout.ts";
import { againstJson, againstTable, isKept } from "./against/comparison.ts";
import { measureAgainst } from "./against/run.ts";
import type { Figure } from "./figure.ts";
import { Bench, type Metric } from "./harness.ts";
import { batchMetrics } from "./batches/index.ts";
import { collectionMetrics } from "./collections/index.ts";
import { metrics } from "./metrics/index.ts";
import { requestMetrics } from "./requests/index.ts";
import { type AgainstOptions, type Options, readAgainst, readOptions, Usage } from "./options.ts";
import { installPeers, PeersMissing } from "./peers.ts";
import { broken, jsonLine, missed, table } from "./report.ts";

process.exitCode = await main(process.argv.slice(2)).catch((thrown: unknown) => {
  if (
    !(thrown instanceof Usage || thrown instanceof PeersMissing || thrown instanceof CheckoutError) &&
    (thrown as { code?: string }).code?.startsWith("ERR_PARSE_ARGS") !== true
  )
    throw thrown;
  console.error((thrown as Error).message);
  return 2;
});
// Whatever a metric left behind must not keep the bench alive; the harness cleans up at the exit.
process.exit();

async function main(argv: readonly string[]): Promise<number> {
  const against = readAgainst(argv);
  if (against) return compareWith(against);
  const metricsOf = ({ batches, requests, collections }: Pick<Options, "batches" | "requests" | "collections">) =>
    collections ? collectionMetrics : requests ? requestMetrics : batches ? batchMetrics : metrics;
  const options = readOptions(argv, (store, of) => metricsOf(of)[store].flatMap(({ names }) => names));
  const profile = options.profile === null ? null : resolve(options.profile);
  if (profile !== null) mkdirSync(profile, { recursive: true });
  const chosen = metricsOf(options)[options.store].filter(({ names }) => names.some((name) => wanted(options, name)));
  if (options.peers && chosen.some(({ peers }) => peers?.[options.store])) installPeers();
  const bench = await Bench.open({ ...options, profile });
  const { figures, failed } = await measure(bench, chosen, options);
  const report = { store: options.store, quick: options.quick, figures, failed };
  const misses = missed(figures);
  const breaks = broken(figures);
  if (misses.length > 0) process.stderr.write(`Missed:\n${misses.map((miss) => `  ${miss}\n`).join("")}`);
  if (breaks.length > 0) process.stderr.write(`Limits not kept:\n${breaks.map((one) => `  ${one}\n`).join("")}`);
  if (profile !== null)
    process.stderr.write(`Profiles of the drain are in ${profile}; open them in Chrome's DevTools.\n`);
  console.log(options.json ? jsonLine(report) : table(report));
  const bad = failed.length > 0 || (options.strict && misses.length > 0) || (options.limits && breaks.length > 0);
  return bad ? 1 : 0;
}

async function compareWith(options: AgainstOptions): Promise<number> {
  const report = await measureAgainst(options);
  console.log(options.json ? againstJson(report) : againstTable(report));
  return options.strict && !isKept(report) ? 1 : 0;
}

/** A metric that can't be measured does not take the others with it. */
async function measure(
  bench: Bench,
  chosen: readonly Metric[],
  options: Options,
): Promise<{ figures: Figure[]; failed: string[] }> {
  const figures: Figure[] = [];
  const failed: string[] = [];
  for (const metric of chosen) {
    const from = performance.now();
    try {
      const found = await metric.run(bench);
      figures.push(...found.filter(({ name }) => wanted(options, name)));
      bench.say(`${metric.names.join(", ")}: ${((performance.now() - from) / 1000).toFixed(1)} s`);
    } catch (thrown) {
      failed.push(...metric.names.filter((name) => wanted(options, name)));
      bench.say(`${metric.names.join(", ")} could not be measured: ${(thrown as Error).stack}`);
    }
    await bench.endAll();
  }
  return { figures, failed };
}

function wanted({ only }: Options, name: string): boolean {
  return only === null || only.includes(name);
}
