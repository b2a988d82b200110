// What a thousand idle workers cost a PostgreSQL server, everything counted: heartbeats, probes, checks, asks for the role of the detector, polls, reads of
// schedules, proofs that wake-ups arrive. Two fleets of real workers are measured and the line through both is drawn on to a thousand: the part that one elected
// process does for all counts once, and what it does for each worker counts for each.
import { setTimeout as delay } from "node:timers/promises";
import type { Bench, Metric } from "../harness.ts";
import type { TestedPostgres } from "../stores/postgres.ts";

const FLEET = 1_000;
/** How much faster the clock of the workers runs. */
const SPEED = 10;
/** The first rounds of a worker are not what an idle one costs. By the clock of the workers. */
const SETTLE_MS = 20_000;

export const idleFleet: Metric = {
  names: ["idleFleet"],
  async run(bench) {
    const [few, many] = bench.pick([20, 80], [10, 40]);
    const ms = bench.pick(100_000, 25_000);
    const fleet = await bench.start("postgres/idle-fleet", { url: await bench.store.place(), speed: SPEED });
    return bench.during([fleet], async () => {
      const costs: number[] = [];
      for (const to of [few, many]) {
        bench.progress(`idleFleet: ${to} idle workers`);
        await fleet.ask("grow", { to });
        await delay(SETTLE_MS / SPEED);
        costs.push(await shareOfACore(bench, ms));
      }
      const each = (costs[1]! - costs[0]!) / (many - few);
      const ours = costs[1]! + each * (FLEET - many);
      return [
        {
          name: "idleFleet",
          unit: "% of a core" as const,
          ours,
          targets: [{ text: "≤ 10 % of a core", value: ours, atMost: 10 }],
          detail: {
            how: `CPU of the server for ${FLEET} idle workers at the defaults, by the line through ${few} and ${many}`,
            each,
            few: costs[0]!,
            many: costs[1]!,
            ms,
          },
        },
      ];
    });
  },
};

/** Of the server, in per cent of a core, for `ms` of the workers' clock. */
async function shareOfACore({ store }: Bench, ms: number): Promise<number> {
  const server = store as TestedPostgres;
  const before = (await server.cpuMs()) ?? 0;
  const from = performance.now();
  await delay(ms / SPEED);
  const cpuMs = ((await server.cpuMs()) ?? 0) - before;
  return (100 * cpuMs) / (performance.now() - from) / SPEED;
}
