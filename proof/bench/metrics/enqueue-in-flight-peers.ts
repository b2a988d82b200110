// Fifty callers at once on PostgreSQL or Redis, each waiting for its own job to be durable, next to other engines.
import { startPeer } from "../drains.ts";
import { median } from "../figure.ts";
import type { Metric, Program } from "../harness.ts";
import { ENQUEUE_PEERS, REDIS_PEERS, shownSettings } from "../peers.ts";

const WIDTH = 50;

export const enqueueInFlightPeers: Metric = {
  names: ["enqueueInFlight"],
  peers: { postgres: true, redis: true },
  async run(bench) {
    const jobs = bench.pick(20_000, 5_000);
    const peerJobs = bench.pick(5_000, 400);
    const single = bench.pick(1_000, 200);
    const most = bench.pick(5, 2);
    const times = bench.store.name === "redis" ? 1.5 : 5;
    let rounds = 0;
    const program = await bench.start("enqueue", { url: await bench.store.place() });
    const peers: { name: string; program: Program; rates: number[] }[] = [];
    if (bench.peers)
      for (const peer of bench.store.name === "redis" ? REDIS_PEERS : ENQUEUE_PEERS)
        peers.push({ name: peer.name, program: await startPeer(bench, peer), rates: [] });
    return bench.during([program, ...peers.map((peer) => peer.program)], async () => {
      const oneRates: number[] = [];
      const rates: number[] = [];
      for (const round of bench.rounds(`enqueueInFlight, ${jobs} jobs`, most, 5)) {
        rounds = round;
        oneRates.push(await program.ask<number>("one", { count: single }));
        rates.push(await program.ask<number>("inFlight", { count: jobs, width: WIDTH }));
        for (const peer of peers)
          peer.rates.push(await peer.program.ask<number>("inFlight", { count: peerJobs, width: WIDTH }));
      }
      const ours = median(rates);
      const beside = Object.fromEntries(peers.map(({ name, rates: theirs }) => [name, median(theirs)]));
      const best = Math.max(...Object.values(beside));
      return [
        {
          name: "enqueueInFlight",
          unit: "jobs/s",
          ours,
          base: { what: "one by one", value: median(oneRates) },
          ...(peers.length > 0 && { peers: beside }),
          targets:
            peers.length === 0 ? [] : [{ text: `≥ ${times} x the best peer`, value: ours / best, atLeast: times }],
          detail: {
            jobs,
            oneByOne: single,
            rounds,
            inFlight: WIDTH,
            ...(peers.length > 0 && {
              peerJobs,
              settings: shownSettings(bench.store.name === "redis" ? REDIS_PEERS : ENQUEUE_PEERS),
            }),
          },
        },
      ];
    });
  },
};
