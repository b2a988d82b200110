// A drain next to a purge of old jobs in the same store: what the purge leaves of the drain's rate, and how many jobs it deletes meanwhile. The rate is that of
// whole rounds: a purge stops a drain on SQLite, which has one writer, for moments that a median would not show.
import { DatabaseSync } from "node:sqlite";
import { CONCURRENCY, Drainers } from "../drains.ts";
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";
import { fileOf } from "../stores/sqlite.ts";
import { filled } from "./drain-deep.ts";

const DAY_MS = 86_400_000;
/** Older than any default of retention. */
const AGE_MS = 400 * DAY_MS;
const LEAST_PURGED = 10_000;

export const drainPurging: Metric = {
  names: ["drainPurging"],
  async run(bench) {
    const isFile = bench.store.name === "sqlite";
    const jobs = bench.pick(isFile ? 200_000 : 100_000, isFile ? 40_000 : 20_000);
    const old = bench.pick(400_000, 60_000);
    const url = await filled(bench, [{ kind: "noop", priority: 0, finished: true, ageMs: AGE_MS, count: old }]);
    if (isFile) makeOld(fileOf(url));
    const left = (): Promise<number> => (isFile ? oldInFile(fileOf(url)) : oldOnServer(url));
    const plain = await Drainers.start(bench, await bench.store.place(), 1);
    const ours = await Drainers.start(bench, url, 1, [], "purging");
    return bench.during([...plain.programs, ...ours.programs], async () => {
      const rates = { plain: [] as number[], ours: [] as number[], purged: [] as number[] };
      while ((await left()) === old) await new Promise((resolve) => setTimeout(resolve, 50));
      let rounds = 0;
      for (const round of bench.rounds(`drainPurging, ${jobs} jobs`, bench.pick(5, 3), 3)) {
        const before = await left();
        const from = performance.now();
        const next = whole((await ours.round(jobs)).rates);
        const tookMs = performance.now() - from;
        const after = await left();
        // What was drained after the last old job was gone is not next to a purge.
        if (after === 0) break;
        rounds = round;
        rates.ours.push(next);
        rates.purged.push(((before - after) * 1_000) / tookMs);
        rates.plain.push(whole((await plain.round(jobs)).rates));
      }
      if (rounds === 0) throw new Error("the purge had ended before the first round");
      const [value, base, purged] = [rates.ours, rates.plain, rates.purged].map(median) as [number, number, number];
      return [
        {
          name: "drainPurging",
          unit: "jobs/s",
          ours: value,
          base: { what: "the same without a purge", value: base },
          targets: [
            { text: "≥ 80 % of the same without a purge", value: value / base, atLeast: 0.8 },
            { text: `≥ ${LEAST_PURGED} jobs/s purged`, value: purged, atLeast: LEAST_PURGED },
          ],
          detail: { jobs, rounds, old, purgedPerSecond: purged, concurrency: CONCURRENCY },
        },
      ];
    });
  },
};

/** The rate of all windows of a round together, each of which has as many jobs. */
function whole(rates: readonly number[]): number {
  return rates.length / rates.reduce((sum, rate) => sum + 1 / rate, 0);
}

/** All jobs of the file have succeeded long ago. */
function makeOld(path: string): void {
  const db = new DatabaseSync(path, { timeout: 10_000 });
  const at = Date.now() - AGE_MS;
  db.exec(`UPDATE outlive_jobs SET state = 2, outcome = 0, fence = 1, created_at = ${at}, finished_at = ${at}`);
  db.close();
}

async function oldInFile(path: string): Promise<number> {
  const db = new DatabaseSync(path, { readOnly: true, timeout: 10_000 });
  const { n } = db
    .prepare("SELECT count(*) AS n FROM outlive_jobs WHERE created_at < ?")
    .get(Date.now() - AGE_MS / 2) as { n: number };
  db.close();
  return n;
}

async function oldOnServer(url: string): Promise<number> {
  // Measuring SQLite needs no `pg`.
  const { asked } = await import("../stores/postgres.ts");
  const at = Date.now() - AGE_MS / 2;
  const [row] = await asked<{ n: number }>(
    url,
    `SELECT count(*)::int AS n FROM outlive.jobs WHERE created_at < ${at}::bigint`,
  );
  return row!.n;
}
