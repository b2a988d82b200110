// `npm run bench -- --against REV`: the same program on the sources of an older commit and on those of this tree. Each round starts both
// sides in processes and on stores of their own, and lets them work in short turns, never at the same time: what else the machine does
// changes within seconds, and must fall on both.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { checkOut, commitOf, providePackages } from "../../../scripts/checkout.ts";
import { CONCURRENCY } from "../drains.ts";
import { Bench, type Program } from "../harness.ts";
import type { AgainstOptions } from "../options.ts";
import type { StoreName } from "../stores/tested-store.ts";
import { type AgainstReport, compare, type Comparison, type Cost, type Pair } from "./comparison.ts";
import { type AgainstName, countsOf } from "./metrics.ts";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));

/** How many parts the jobs of one round are done in, per side. */
const TURNS = 4;

export async function measureAgainst(options: AgainstOptions): Promise<AgainstReport> {
  const { revision, rounds, quick, limit } = options;
  const commit = commitOf(ROOT, revision);
  const folder = mkdtempSync(join(tmpdir(), "outlive-bench-against-"));
  process.once("exit", () => rmSync(folder, { recursive: true, force: true, maxRetries: 3 }));
  const tree = checkOut(ROOT, commit, folder);
  providePackages(ROOT, tree, (what) => process.stderr.write(`${what}\n`));
  const comparisons: Comparison[] = [];
  for (const store of options.stores) comparisons.push(...(await compareOn(store, tree, options)));
  return { revision, commit, rounds, quick, limit, comparisons };
}

async function compareOn(store: StoreName, tree: string, options: AgainstOptions): Promise<Comparison[]> {
  const { names, rounds, quick } = options;
  const bench = await Bench.open({ store, quick, peers: false, profile: null });
  if (store === "postgres") await withoutAutovacuum(bench);
  const counts = countsOf(store, quick);
  const pairs = new Map<AgainstName, Pair[]>(names.map((name) => [name, []]));
  for (let round = 0; round < rounds; round++) {
    bench.progress(`${store}: round ${round + 1} of ${rounds}`);
    const sides = { old: await startSide(bench, tree), new: await startSide(bench, ROOT) };
    await bench.during([sides.old.program, sides.new.program], async () => {
      const first = round % 2 === 0 ? "old" : "new";
      for (const name of names) await pairOf(bench, sides, name, counts.warmUp, first);
      for (const name of names) pairs.get(name)!.push(await pairOf(bench, sides, name, counts.jobs[name], first));
    });
    for (const { url } of [sides.old, sides.new]) await bench.store.drop(url);
  }
  return names.map((name) => compare({ store, name, jobs: counts.jobs[name] }, pairs.get(name)!));
}

interface Side {
  readonly program: Program;
  readonly url: string;
}

async function startSide(bench: Bench, tree: string): Promise<Side> {
  const { store } = bench;
  const url = await store.place(tree);
  return { program: await bench.start("against", { tree, url, store: store.name, concurrency: CONCURRENCY }), url };
}

/** Each side does its jobs in TURNS equal parts: one, the other, the other, one, and so on, so that a trend harms neither. */
async function pairOf(
  bench: Bench,
  sides: Readonly<Record<"old" | "new", Side>>,
  name: AgainstName,
  jobs: number,
  first: "old" | "new",
): Promise<Pair> {
  const costs: Record<"old" | "new", Cost[]> = { old: [], new: [] };
  const second = first === "old" ? "new" : "old";
  for (let turn = 0; turn < TURNS; turn++)
    for (const side of turn % 2 === 0 ? ([first, second] as const) : ([second, first] as const))
      costs[side].push(await costOf(bench, sides[side].program, name, Math.ceil(jobs / TURNS)));
  return { old: mean(costs.old), new: mean(costs.new) };
}

function mean(costs: readonly Cost[]): Cost {
  const of = (part: keyof Cost): number => costs.reduce((sum, cost) => sum + cost[part], 0) / costs.length;
  return { node: of("node"), server: of("server") };
}

/** In µs of CPU per job. */
async function costOf(bench: Bench, program: Program, name: AgainstName, jobs: number): Promise<Cost> {
  await program.ask("fill", { name, jobs });
  const before = await serverMs(bench);
  const nodeMs = await program.ask<number>("measure", { name, jobs });
  const afterMs = await serverMs(bench);
  return { node: (nodeMs * 1_000) / jobs, server: ((afterMs - before) * 1_000) / jobs };
}

async function serverMs({ store }: Bench): Promise<number> {
  const cpuMs = await store.cpuMs();
  if (cpuMs === null) throw new Error("The CPU of the server can't be read here: --against needs /proc.");
  return cpuMs;
}

/** It runs when its own minute has passed and would be in the figures of one side only. */
async function withoutAutovacuum(bench: Bench): Promise<void> {
  const { asked } = await import("../stores/postgres.ts");
  const url = await bench.store.place();
  await asked(url, "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()");
  await bench.store.drop(url);
}
