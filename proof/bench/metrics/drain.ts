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
      const share = SHARES[bench.store.name];
      const beside = Object.fromEntries(peers.map(({ peer, rates }) => [peer.name, median(rates)]));
      return [
        {
          name: "drain",
          unit: "jobs/s",
          ours,
          floor: least,
          ...(peers.length > 0 && { peers: beside }),
          targets: [
            { text: `≥ ${share * 100} % of the floor`, value: ours / least, atLeast: share },
            ...aheadOf(ours, Object.entries(beside)),
          ],
          detail: {
            jobs,
            rounds,
            concurrency: CONCURRENCY,
            floorBatch: bench.store.floorBatch,
            ...(peers.length > 0 && { slowPeersJobs: jobs / slower, settings: shownSettings(PEERS[bench.store.name]) }),
          },
        },
      ];
    });
  },
};

/** At least this share of the floor. */
const SHARES = { sqlite: 0.8, postgres: 0.75, redis: 0.6 } as const;
/** And so many times the rate of the fastest peers. */
const TIMES_PEER: Readonly<Record<string, number>> = { "graphile-worker localQueue": 1.3, BullMQ: 4 };
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

function aheadOf(ours: number, peers: readonly (readonly [name: string, rate: number])[]): Target[] {
  if (peers.length === 0) return [];
  const best = Math.max(...peers.map(([, rate]) => rate));
  const named = peers.flatMap(([name, rate]) => {
    const atLeast = TIMES_PEER[name];
    return atLeast === undefined ? [] : [{ text: `≥ ${atLeast} x ${name}`, value: ours / rate, atLeast }];
  });
  return [{ text: "ahead of all peers", value: ours / best, atLeast: 1 }, ...named];
}
