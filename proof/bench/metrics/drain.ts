// How fast one process of ours works off no-op jobs, next to the least that the store needs for it, and on PostgreSQL next to other
// engines. All of them do a round in turn, so that a slow moment of the machine is everybody's.
import { CONCURRENCY, Drainers, roundOf, startFloor, startPeer } from "../drains.ts";
import { median, type Target } from "../figure.ts";
import type { Bench, Metric, Program } from "../harness.ts";
import { DRAIN_PEERS, type Peer, REDIS_PEERS, shownSettings } from "../peers.ts";

export const drain: Metric = {
  names: ["drain"],
  peers: { postgres: true, redis: true },
  async run(bench) {
    const jobs = bench.pick(
      { sqlite: 100_000, postgres: 50_000, redis: 50_000 }[bench.store.name],
      { sqlite: 10_000, postgres: 20_000, redis: 20_000 }[bench.store.name],
    );
    const most = bench.pick(5, { sqlite: 10, postgres: 2, redis: 2 }[bench.store.name]);
    const slower = bench.pick(10, 20);
    let rounds = 0;
    const floor = await startFloor(bench);
    const execArgv = bench.profile === null ? [] : ["--cpu-prof", `--cpu-prof-dir=${bench.profile}`];
    const drainers = await Drainers.start(bench, await bench.store.place(), 1, execArgv);
    const peers = await startPeers(bench);
    return bench.during([floor, ...drainers.programs, ...peers.map(({ program }) => program)], async () => {
      const floorRates: number[] = [];
      const ourRates: number[] = [];
      // Not counted: everybody's code is compiled and everybody's tables have pages when it begins.
      await roundOf(floor, WARM_UP);
      await drainers.round(WARM_UP);
      for (const { peer, program } of peers) if (!peer.slow) await roundOf(program, WARM_UP);
      for (const round of bench.rounds(
        `drain, ${jobs} jobs`,
        most,
        { sqlite: 5, postgres: 12, redis: 12 }[bench.store.name],
      )) {
        rounds = round;
        floorRates.push(...(await roundOf(floor, jobs)));
        ourRates.push(...(await drainers.round(jobs)).rates);
        for (const { peer, program, rates } of peers)
          rates.push(...(await roundOf(program, peer.slow ? jobs / slower : jobs)));
      }
      await drainers.stop();
      const ours = median(ourRates);
      const least = median(floorRates);
      const beside = Object.fromEntries(peers.map(({ peer, rates }) => [peer.name, median(rates)]));
      return [
        {
          name: "drain",
          unit: "jobs/s",
          ours,
          floor: least,
          ...(peers.length > 0 && { peers: beside }),
          targets: [
            bench.store.name === "redis"
              ? { text: "≥ 45 % of the floor", value: ours / least, atLeast: 0.45 }
              : { text: "≥ 60 % of the floor", value: ours / least, atLeast: 0.6 },
            ...aheadOf(ours, Object.values(beside), bench.store.name === "redis" ? 3 : 1),
          ],
          detail: {
            jobs,
            rounds,
            concurrency: CONCURRENCY,
            ...(bench.store.name === "postgres" && { floorBatch: bench.store.floorBatch }),
            ...(peers.length > 0 && { slowPeersJobs: jobs / slower, settings: shownSettings(PEERS[bench.store.name]) }),
          },
        },
      ];
    });
  },
};

const WARM_UP = 5_000;
const PEERS = { sqlite: [], postgres: DRAIN_PEERS, redis: REDIS_PEERS } as const;

interface Beside {
  readonly peer: Peer;
  readonly program: Program;
  readonly rates: number[];
}

async function startPeers(bench: Bench): Promise<Beside[]> {
  const started: Beside[] = [];
  if (bench.peers)
    for (const peer of PEERS[bench.store.name])
      started.push({ peer, program: await startPeer(bench, peer), rates: [] });
  return started;
}

function aheadOf(ours: number, peers: readonly number[], times: number): Target[] {
  if (peers.length === 0) return [];
  const text = times === 1 ? "ahead of all peers" : `≥ ${times} x the best peer`;
  return [{ text, value: ours / Math.max(...peers), atLeast: times }];
}
