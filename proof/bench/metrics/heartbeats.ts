// What a thousand workers cost a PostgreSQL server when there is nothing to do: their heartbeats, the check of the one that checks
// for all, the others asking for its place, and the looks of each at its neighbours. Measured one after the other as fast as they go, then scaled to the defaults.
import { setTimeout as delay } from "node:timers/promises";
import type { Bench, Metric } from "../harness.ts";
import { asked, type TestedPostgres } from "../stores/postgres.ts";

const BEAT_EVERY_S = 10;
const PROBE_EVERY_S = 0.25;
const LOOK_EVERY_S = 7.5;
/** All together 32 times a second, and each at least every 10 s. */
const asksASecond = (workers: number): number => 32 + workers / 10;

export const heartbeats: Metric = {
  names: ["heartbeats"],
  async run(bench) {
    const workers = bench.pick(1_000, 200);
    const rounds = bench.pick(10, 5);
    const url = await bench.store.place();
    const fleet = await bench.start("postgres/fleet", { url });
    const beats = workers * rounds;
    const probes = bench.pick(100, 20);
    const measured = await bench.during([fleet], async () => {
      bench.progress(`heartbeats: ${workers} workers, ${rounds} beats each`);
      await fleet.ask("register", { count: workers });
      // The first beat after a checkpoint writes whole pages to the log: once in five minutes, not with every beat.
      await asked(url, "CHECKPOINT");
      await fleet.ask("beat");
      const before = { bytes: await indexBytes(url), wal: await walPosition(url) };
      const beat = await cost(bench, beats, async () => {
        for (let round = 0; round < rounds; round++) await fleet.ask("beat");
      });
      const [wal] = await asked<{ bytes: number }>(
        url,
        `SELECT (pg_current_wal_insert_lsn() - '${before.wal}'::pg_lsn)::float8 AS bytes`,
      );
      const grown = (await indexBytes(url)) - before.bytes;
      const probe = await cost(bench, probes, () => fleet.ask("probe", { times: probes }));
      const ask = await cost(bench, workers, () => fleet.ask("ask", { times: workers }));
      const look = await cost(bench, workers, () => fleet.ask("look", { times: workers }));
      return { beat, probe, ask, look, grown, walPerBeat: wal!.bytes / beats };
    });
    const { updates, hot } = await updatesOf(url, beats + workers);
    const { beat, probe, ask, look, grown, walPerBeat } = measured;
    const beatsCpu = (beat.cpuMs * workers) / BEAT_EVERY_S / 10;
    const probesCpu = probe.cpuMs / PROBE_EVERY_S / 10;
    const asksCpu = (ask.cpuMs * asksASecond(workers)) / 10;
    const looksCpu = (look.cpuMs * workers) / LOOK_EVERY_S / 10;
    return [
      {
        name: "heartbeats",
        unit: "% of a core",
        ours: beatsCpu + probesCpu + asksCpu + looksCpu,
        targets: [
          { text: "1 update a beat", value: updates / (beats + workers), atLeast: 1, atMost: 1 },
          { text: "all of them HOT", value: hot / updates, atLeast: 1 },
          { text: "indexes grow by 0 bytes", value: grown, atMost: 0 },
        ],
        detail: {
          how: "CPU of the server for this many workers at the defaults",
          workers,
          beats,
          beatsCpu,
          probesCpu,
          asksCpu,
          looksCpu,
          beatsPerSecond: workers / BEAT_EVERY_S,
          walBytesPerBeat: walPerBeat,
          walKbPerSecond: (walPerBeat * workers) / BEAT_EVERY_S / 1024,
          beatMs: beat.tookMs,
          probeMs: probe.tookMs,
          askMs: ask.tookMs,
          lookMs: look.tookMs,
        },
      },
    ];
  },
};

/** What one of `count` costs: time, and CPU of the server (0 where it can't be read). */
async function cost(
  { store }: Bench,
  count: number,
  work: () => Promise<unknown>,
): Promise<{ tookMs: number; cpuMs: number }> {
  const server = store as TestedPostgres;
  const cpu = (await server.cpuMs()) ?? 0;
  const from = performance.now();
  await work();
  const tookMs = (performance.now() - from) / count;
  return { tookMs, cpuMs: (((await server.cpuMs()) ?? 0) - cpu) / count };
}

async function indexBytes(url: string): Promise<number> {
  const [row] = await asked<{ bytes: number }>(url, "SELECT pg_indexes_size('outlive.fleet')::float8 AS bytes");
  return row!.bytes;
}

async function walPosition(url: string): Promise<string> {
  const [row] = await asked<{ at: string }>(url, "SELECT pg_current_wal_insert_lsn()::text AS at");
  return row!.at;
}

/** A session reports what it did some time later, at the latest when it ends. */
async function updatesOf(url: string, expected: number): Promise<{ updates: number; hot: number }> {
  for (let tries = 0; ; tries++) {
    const [row] = await asked<{ updates: number; hot: number }>(
      url,
      "SELECT n_tup_upd::int AS updates, n_tup_hot_upd::int AS hot FROM pg_stat_user_tables WHERE schemaname = 'outlive' AND relname = 'fleet'",
    );
    if (row!.updates >= expected || tries >= 50) return row!;
    await delay(100);
  }
}
