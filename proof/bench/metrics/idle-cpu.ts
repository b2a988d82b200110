// What a worker with nothing to do costs, all its threads together. A heartbeat at the defaults (30 s, 10 s on PostgreSQL) is too rare to be measured, so workers
// that beat every 50 ms are held against workers at the defaults; the difference per beat, once per interval, is `heartbeatCpu`. Such a
// beat brings a look over all workers with it, as it does about once per heartbeat at the defaults, too.
import { setTimeout as delay } from "node:timers/promises";
import { median } from "../figure.ts";
import type { Metric, Program } from "../harness.ts";
import type { Idle } from "../programs/idle.ts";

const SHORT = { interval: "50ms", lease: "10m" } as const;
const DEFAULT_INTERVAL_MS = { sqlite: 30_000, postgres: 10_000, redis: 10_000 } as const;
/** Compiling and the first looks are not what an idle worker costs. */
const SETTLE_MS = 1_000;

export const idleCpu: Metric = {
  names: ["heartbeatCpu", "idleCpu"],
  async run(bench) {
    const ms = bench.pick(10_000, { sqlite: 2_500, postgres: 1_500, redis: 1_500 }[bench.store.name]);
    const workers = bench.pick(4, 2);
    const quiet = await bench.startAll(workers, "idle", { url: await bench.store.place() });
    const beating = await bench.startAll(workers, "idle", { url: await bench.store.place(), ...SHORT });
    return bench.during([...quiet, ...beating], async () => {
      bench.progress(`idleCpu, heartbeatCpu: ${workers} + ${workers} idle workers for ${ms / 1000} s`);
      await delay(SETTLE_MS);
      const measure = (program: Program): Promise<Idle> => program.ask<Idle>("measure", { ms });
      const [idle, short] = await Promise.all([Promise.all(quiet.map(measure)), Promise.all(beating.map(measure))]);
      const share = ({ cpuMs, wallMs }: Idle): number => (100 * cpuMs) / wallMs;
      const ours = median(idle.map(share));
      const beats = median(short.map((each) => each.beats));
      const perBeatMs = Math.max(0, ((median(short.map(share)) - ours) / 100) * (ms / beats));
      const intervalMs = DEFAULT_INTERVAL_MS[bench.store.name];
      const heartbeat = (100 * perBeatMs) / intervalMs;
      const target = (value: number) => ({ text: "< 1 % of a core", value, atMost: 1 });
      return [
        {
          name: "heartbeatCpu",
          unit: "% of a core",
          ours: heartbeat,
          targets: [target(heartbeat)],
          limits: [{ text: "NFR-003: < 1 % of a core", value: heartbeat, atMost: 1 }],
          detail: {
            how: `cost of a beat every 50 ms over none, scaled to one in ${intervalMs / 1000} s`,
            perBeatMs,
            beats,
            ms,
          },
        },
        {
          name: "idleCpu",
          unit: "% of a core",
          ours,
          targets: [target(ours)],
          detail: {
            how: "median of idle workers at the defaults on one store",
            workers,
            ms,
            max: Math.max(...idle.map(share)),
          },
        },
      ];
    });
  },
};
