// Requests with keys, as the server sees them: in order across kills, and at the rate of each host.
import { setTimeout as pause } from "node:timers/promises";
import { round } from "../figure.ts";
import type { Bench, Metric, Program } from "../harness.ts";

async function untilLeft(bench: Bench, program: Program, kind: string, most: number): Promise<void> {
  for (;;) {
    const left = await program.ask<number>("left", { kind });
    if (left <= most) return;
    bench.progress(`${kind}: ${left} left`);
    await pause(20);
  }
}

/** Counting rows takes 8 ms of the process that sends, so the store is asked when all have arrived. */
async function untilArrived(bench: Bench, server: Program, count: number): Promise<void> {
  for (;;) {
    const arrived = await server.ask<number>("count");
    if (arrived >= count) return;
    bench.progress(`${arrived} of ${count} arrived`);
    await pause(20);
  }
}

/** How many arrived after a later one of their key. The same one again is not out of order. */
function inversions(paths: readonly string[]): number {
  const latest = new Map<string, number>();
  return paths.filter((path) => {
    const [, , key = "", number = ""] = path.split("/");
    const before = latest.get(key) ?? -1;
    latest.set(key, Math.max(before, Number(number)));
    return Number(number) < before;
  }).length;
}

export const order: Metric = {
  names: ["requestOrder"],
  async run(bench) {
    const [keys, each, kills] = [bench.pick(1_000, 50), bench.pick(100, 10), bench.pick(20, 3)];
    const server = await bench.start("request-server", { delayMs: 5 });
    const given = {
      url: await bench.store.place(),
      target: await server.ask<string>("url"),
      inFlight: keys,
      bare: false,
    };
    let victim = await bench.start("requests", given);
    let other = await bench.start("requests", given);
    await victim.ask("fillKeys", { kind: "ordered", keys, each });
    const began = performance.now();
    await victim.ask("go", {});
    await other.ask("go", {});
    for (let kill = 1; kill <= kills; kill++) {
      await untilLeft(bench, other, "ordered", keys * each * (1 - kill / (kills + 1)));
      await victim.kill();
      [victim, other] = [other, await bench.start("requests", given)];
      await other.ask("go", {});
    }
    await untilLeft(bench, other, "ordered", 0);
    const seconds = (performance.now() - began) / 1_000;
    const paths = await server.ask<string[]>("paths");
    const found = inversions(paths);
    const missing = keys * each - new Set(paths).size;
    await Promise.all([victim.end(), other.end(), server.end()]);
    return [
      {
        name: "requestOrder",
        unit: "requests/s",
        ours: (keys * each) / seconds,
        targets: [
          { text: "0 inversions", value: found, atMost: 0 },
          { text: "all arrive", value: missing, atMost: 0 },
        ],
        detail: {
          how: "strict order per key, two processes, one of them killed at equal distances; the time includes the kills",
          keys,
          each,
          kills,
          inversions: found,
          sentAgain: paths.length - new Set(paths).size,
        },
      },
    ];
  },
};

const RATE = 2;
const BURST = 1;

export const hosts: Metric = {
  names: ["requestHosts"],
  async run(bench) {
    const [keys, each] = [bench.pick(1_000, 100), bench.pick(20, 6)];
    const server = await bench.start("request-server", {});
    const given = {
      url: await bench.store.place(),
      target: await server.ask<string>("url"),
      inFlight: 1_000,
      bare: false,
    };
    const ours = await bench.start("requests", given);
    return bench.during([ours, server], async () => {
      await ours.ask("fillKeys", { kind: "hosts", keys, each });
      const began = Number(process.hrtime.bigint()) / 1e6;
      await ours.ask("go", {});
      await untilArrived(bench, server, keys * each);
      await untilLeft(bench, ours, "hosts", 0);
      const arrivals = await server.ask<number[]>("arrivals");
      const paths = await server.ask<string[]>("paths");
      const ideal = ((each - BURST) / RATE) * 1_000;
      const share = (Math.max(...arrivals) - began) / ideal;
      const most = Math.max(...busiest(paths, arrivals));
      return [
        {
          name: "requestHosts",
          unit: "requests/s",
          ours: (1_000 * arrivals.length) / (Math.max(...arrivals) - began),
          targets: [
            { text: "≤ 1.1 x the ideal time", value: share, atMost: 1.1 },
            { text: "no host over rate + burst in a second", value: most, atMost: RATE + BURST },
          ],
          detail: {
            how: "from the start to the last arrival; ideal: every host at its rate all the time",
            hosts: keys,
            each,
            rate: RATE,
            burst: BURST,
            ofIdeal: round(share),
            mostInASecond: most,
            requests: arrivals.length,
          },
        },
      ];
    });
  },
};

/** Of each host, how many arrived within one second at most. */
function busiest(paths: readonly string[], arrivals: readonly number[]): number[] {
  const ofHost = Map.groupBy(
    paths.map((path, i) => ({ host: path.split("/")[2]!, at: arrivals[i]! })),
    ({ host }) => host,
  );
  return [...ofHost.values()].map((all) =>
    Math.max(...all.map(({ at }, i) => all.filter((one, j) => j >= i && one.at - at < 1_000).length)),
  );
}
