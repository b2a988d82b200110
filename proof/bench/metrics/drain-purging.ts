// A drain next to a purge of old jobs on the same SQLite file, which has one writer: what the purge leaves of the drain's rate, and how many jobs it deletes
// meanwhile. The rate is that of whole rounds: a purge stops a drain for moments, which a median would not show.
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
    const jobs = bench.pick(200_000, 40_000);
    const old = bench.pick(400_000, 60_000);
    const url = await filled(bench, [{ kind: "noop", priority: 0, count: old }]);
    const path = fileOf(url);
    makeOld(path);
    const plain = await Drainers.start(bench, await bench.store.place(), 1);
    const ours = await Drainers.start(bench, url, 1, [], "purging");
    return bench.during([...plain.programs, ...ours.programs], async () => {
      const rates = { plain: [] as number[], ours: [] as number[], purged: [] as number[] };
      while (oldJobs(path) === old) await new Promise((resolve) => setTimeout(resolve, 50));
      let rounds = 0;
      for (const round of bench.rounds(`drainPurging, ${jobs} jobs`, bench.pick(5, 3), 3)) {
        const before = oldJobs(path);
        const from = performance.now();
        const next = whole((await ours.round(jobs)).rates);
        const tookMs = performance.now() - from;
        const left = oldJobs(path);
        // What was drained after the last old job was gone is not next to a purge.
        if (left === 0) break;
        rounds = round;
        rates.ours.push(next);
        rates.purged.push(((before - left) * 1_000) / tookMs);
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

/** Old jobs have the lowest numbers, and go from the lowest on. */
function oldJobs(path: string): number {
  const db = new DatabaseSync(path, { readOnly: true, timeout: 10_000 });
  const { n } = db
    .prepare("SELECT count(*) AS n FROM outlive_jobs WHERE created_at < ?")
    .get(Date.now() - AGE_MS / 2) as { n: number };
  db.close();
  return n;
}
