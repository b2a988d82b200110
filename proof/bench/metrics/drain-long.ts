// Whether a drain stays as fast as it began while what it has claimed lies dead in front of what is left: 600,000 jobs in one go, and on PostgreSQL a steady
// load next to a session that is idle in a transaction, because of which nothing dead can be removed.
import { CONCURRENCY, Drainers } from "../drains.ts";
import { median, percentile } from "../figure.ts";
import type { Bench, Metric } from "../harness.ts";

export const drainLong: Metric = {
  names: ["drainLong"],
  async run(bench) {
    const { name } = bench.store;
    const jobs = bench.pick(600_000, name === "sqlite" ? 80_000 : 40_000);
    const share = name === "sqlite" ? 0.9 : 0.85;
    const rounds: Long[] = [];
    for (const _ of bench.rounds(`drainLong, ${jobs} jobs`, bench.pick(3, 1), 10))
      rounds.push(await inOneGo(bench, jobs));
    const shares = rounds.map(({ first, last }) => last / first);
    const { first, last, rates } = rounds[shares.indexOf(percentile(shares, 50))]!;
    return [
      {
        name: "drainLong",
        unit: "jobs/s",
        ours: last,
        base: { what: "the first tenth of the same drain", value: first },
        targets: [{ text: `last tenth ≥ ${share * 100} % of the first`, value: last / first, atLeast: share }],
        detail: {
          jobs,
          rounds: rounds.length,
          ofRounds: shares.map((one) => one.toFixed(2)).join(" "),
          median: Math.round(median(rates)),
          slowest: Math.round(Math.min(...rates)),
          concurrency: CONCURRENCY,
        },
      },
    ];
  },
};

interface Long {
  readonly rates: readonly number[];
  readonly first: number;
  readonly last: number;
}

/** Each in a new store. A tenth of it on SQLite is 0.3 s, so that one moment in which the machine does something else can decide a single round. */
async function inOneGo(bench: Bench, jobs: number): Promise<Long> {
  const url = await bench.store.place();
  const ours = await Drainers.start(bench, url, 1);
  const { rates } = await bench.during(ours.programs, async () => {
    const round = await ours.round(jobs);
    await ours.stop();
    return round;
  });
  await bench.store.drop(url);
  const tenth = Math.max(1, Math.floor(rates.length / 10));
  return { rates, first: median(rates.slice(0, tenth)), last: median(rates.slice(-tenth)) };
}

interface Offered {
  readonly turns: readonly number[];
  readonly waited: readonly number[];
  /** Of the idle worker, so far. */
  readonly failedBeats: number;
}

const OFFERED_PER_SECOND = 800;

export const drainPinned: Metric = {
  names: ["drainPinned"],
  async run(bench) {
    const ms = bench.pick(120_000, 5_000);
    const burst = bench.pick(10_000, 5_000);
    const url = await bench.store.place();
    const program = await bench.start("pinned", { url, concurrency: CONCURRENCY });
    return bench.during([program], async () => {
      const offer = (forMs: number): Promise<Offered> =>
        program.ask<Offered>("offer", { ms: forMs, perSecond: OFFERED_PER_SECOND });
      const burstRate = async (): Promise<number> => {
        const rates: number[] = [];
        for (let n = 0; n < 3; n++) rates.push(await program.ask<number>("burst", { count: burst }));
        return median(rates);
      };
      const clean = await burstRate();
      const before = median((await offer(bench.pick(10_000, 2_000))).turns);
      const release = await pin(url);
      try {
        await offer((ms * 5) / 6);
        const cpu = await cpuMs(bench);
        // Its last part, when most lies dead.
        const { turns, waited, failedBeats } = await offer(ms / 6);
        const cores = ((await cpuMs(bench)) - cpu) / (ms / 6);
        const pinned = await burstRate();
        const turn = median(turns);
        const p99 = percentile(waited, 99);
        return [
          {
            name: "drainPinned",
            unit: "ms",
            ours: turn,
            base: { what: "a turn before", value: before },
            targets: [
              { text: "turn ≤ 3 ms", value: turn, atMost: 3 },
              { text: "p99 pickup ≤ 40 ms", value: p99, atMost: 40 },
              { text: "server ≤ 0.5 cores", value: cores, atMost: 0.5 },
              { text: "a burst at the end ≥ 80 % of a clean one", value: pinned / clean, atLeast: 0.8 },
              { text: "no heartbeat of an idle worker fails", value: failedBeats, atMost: 0 },
            ],
            detail: {
              pinnedMs: ms,
              perSecond: OFFERED_PER_SECOND,
              p99PickupMs: p99,
              cores,
              burst,
              burstOfClean: pinned / clean,
              failedBeats,
              how: "median time of a turn, those that only settle included",
            },
          },
        ];
      } finally {
        await release();
      }
    });
  },
};

/** A session that has a number and does nothing. Returns what ends it. */
async function pin(url: string): Promise<() => Promise<void>> {
  const { Client } = await import("pg");
  const client = new Client({ connectionString: url });
  await client.connect();
  await client.query("BEGIN");
  await client.query("SELECT txid_current()");
  return () => client.end();
}

async function cpuMs({ store }: Bench): Promise<number> {
  return (await store.cpuMs()) ?? 0;
}
