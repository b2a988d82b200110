// 100,000 jobs of one tenant, and then one of another: the other waits for at most one round of the fleet, whatever is queued before it.
import { appendFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { job, open } from "../../../src/index.ts";
import { migrationsOf } from "../../../src/stores/registry.ts";
import { Chance } from "../../../src/torture/killer.ts";
import { NO_FINDINGS } from "./audit.ts";
import { instant, type Line } from "./kinds.ts";
import { isPlanted } from "./plants.ts";
import { readLines, type Scenario } from "./stage.ts";
import { Workers } from "./workers.ts";

const BACKLOG = 100_000;
const ENQUEUED_AT_ONCE = 2_000;
const WORKERS = 4;
export const CONCURRENCY = 8;
/** How many tenants come with one job each, one after the other. A worker is killed before each second one. */
const NEWCOMERS = 10;
const BETWEEN_MS = 300;
/** What may be claimed after a newcomer came and starts before it: as many jobs as the fleet has slots. */
const ALLOWED_ROUNDS = 1;

const STARTED_WITHIN_MS = 30_000;

const history = process.env["OUTLIVE_FEATURES_HISTORY"];

export const shared = job<{ readonly tenant: string; readonly n: number }>("shared", {
  retry: { attempts: 1_000, crashes: 1_000 },
  ...(!isPlanted("fair") && { fair: ({ tenant }: { readonly tenant: string }) => tenant }),
});
shared.handle(async ({ tenant: key, n }, run) => {
  const line: Line = {
    what: "start",
    kind: "shared",
    key,
    job: run.id,
    attempt: run.attempt,
    process: 0,
    at: instant(),
    n,
  };
  if (history !== undefined) appendFileSync(history, `${JSON.stringify(line)}\n`);
  await pause(20);
});

export const KINDS = [shared] as const;

export const fairness: Scenario = {
  name: "fairness",
  stores: ["sqlite", "postgres", "redis"],

  async run(place, sizes) {
    if (!place.url.startsWith("sqlite:")) await (await migrationsOf(place.url)).up();
    await using engine = await open(place.url, { jobs: KINDS, logger: false });
    const backlog = Math.round(BACKLOG * sizes.scale);
    for (let n = 0; n < backlog; n += ENQUEUED_AT_ONCE) {
      const count = Math.min(ENQUEUED_AT_ONCE, backlog - n);
      await engine.enqueueMany(
        shared,
        Array.from({ length: count }, (_, i) => ({ tenant: "large", n: n + i })),
      );
    }
    const workers = sizes.workers ?? WORKERS;
    const fleet = new Workers({ ...place, count: workers, kinds: new URL("./fairness.ts", import.meta.url) });
    await fleet.start();
    const chance = new Chance(sizes.seed);
    const came = new Map<string, { readonly at: number; readonly wallMs: number }>();
    for (let n = 0; n < NEWCOMERS; n++) {
      await pause(BETWEEN_MS);
      if (n % 2 === 1) fleet.killOne(chance);
      const { id } = await engine.enqueue(shared, { tenant: `small-${n}`, n });
      came.set(id, { at: instant(), wallMs: Date.now() });
    }
    const until = performance.now() + Math.min(sizes.endedWithinMs, STARTED_WITHIN_MS);
    const started = (): Map<string, Line> =>
      new Map(
        readLines(place.folder).flatMap((line) => (came.has(line.job) && line.attempt === 1 ? [[line.job, line]] : [])),
      );
    while (performance.now() < until && started().size < came.size) await pause(BETWEEN_MS);
    await fleet.killAll();
    const lines = readLines(place.folder);
    const starts = started();
    // By claims, not by handlers: a job that was claimed before the newcomer came, or after the newcomer was claimed itself, did not overtake it, whichever
    // process the kernel let run first.
    const claimedAt = async (id: string, attempt: number): Promise<number | null> => {
      const found = await engine.get(id);
      if (found?.attempt === attempt) return found.startedAt;
      return found?.history.find((entry) => entry.attempt === attempt)?.startedAt ?? null;
    };
    const overtook = async ({ job: id, attempt }: Line, fromMs: number, toMs: number): Promise<boolean> => {
      const ms = await claimedAt(id, attempt);
      return ms === null || (ms >= fromMs && ms <= toMs);
    };
    const waits = await Promise.all(
      [...came].map(async ([id, { at, wallMs }]) => {
        const start = starts.get(id);
        const between = lines.filter((line) => line.key === "large" && line.at >= at && line.at < (start?.at ?? 0));
        const claimedMs = (await claimedAt(id, 1)) ?? Number.POSITIVE_INFINITY;
        const claimed = await Promise.all(between.map((line) => overtook(line, wallMs, claimedMs)));
        return {
          id,
          rounds: start ? claimed.filter(Boolean).length / (workers * CONCURRENCY) : Number.POSITIVE_INFINITY,
          ms: start ? start.at - at : 0,
        };
      }),
    );
    const late = waits.filter(({ rounds }) => rounds > ALLOWED_ROUNDS);
    const longest = Math.max(...waits.map(({ rounds }) => rounds));
    return {
      kills: fleet.killedAt.size,
      enqueued: backlog + came.size,
      findings: {
        ...NO_FINDINGS,
        stuckKeys: late.map(
          ({ id, rounds }) =>
            `job ${id}, the only one of its tenant, waited for ${rounds.toFixed(1)} rounds of the fleet`,
        ),
      },
      figures: {
        backlog,
        startsOfOthers: lines.length - came.size,
        longestWaitRounds: Math.round(100 * longest) / 100,
        longestWaitMs: Math.round(Math.max(...waits.map(({ ms }) => ms))),
      },
    };
  },
};
