// What only a Redis store is asked: its memory, what an idle worker sends, how long reads take in a large store, and a drain that waits for the disk with every
// write. How long single scripts take is in redis-scripts.ts.
import { connect as connectTo } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { open } from "../../../src/index.ts";
import { CONCURRENCY, Drainers, startPeer } from "../drains.ts";
import { median } from "../figure.ts";
import type { Bench, Metric } from "../harness.ts";
import { REDIS_PEERS } from "../peers.ts";
import { noop, unknown } from "../programs/noop.ts";
import { TestedRedis } from "../stores/redis.ts";

const INPUT_BYTES = 100;
const MAX_BYTES = 340;

function redisOf(bench: Bench): TestedRedis {
  if (bench.store instanceof TestedRedis) return bench.store;
  throw new Error("a metric of Redis needs Redis");
}

/** What the issue allows, next to BullMQ. */
const OF_BULLMQ = 0.5;

/** Jobs with an input of 100 bytes, enqueued by us, and the same jobs when they have succeeded; and those of BullMQ. */
export const jobMemory: Metric = {
  names: ["jobMemoryQueued", "jobMemoryFinished"],
  peers: { redis: true },
  async run(bench) {
    const jobs = bench.pick(200_000, 20_000);
    const store = redisOf(bench);
    const url = await store.place();
    const used = async (): Promise<number> =>
      Number(/used_memory:(\d+)/.exec(String(await store.command("INFO", "memory")))![1]);
    const drainers = await Drainers.start(bench, url, 1);
    return bench.during(drainers.programs, async () => {
      bench.progress(`jobMemory, ${jobs} jobs`);
      // The kind is there, and the first pages of everything.
      await drainers.round(1_000);
      const before = await used();
      await drainers.programs[0]!.ask("fill", { count: jobs, priority: 0, inputBytes: INPUT_BYTES });
      const queued = ((await used()) - before) / jobs;
      await drainers.round(jobs, null);
      const finished = ((await used()) - before) / jobs;
      await drainers.stop();
      const beside = bench.peers ? await memoryOfPeer(bench, jobs, used) : null;
      const figure = (name: string, ours: number, theirs: number | undefined) => ({
        name,
        unit: "B" as const,
        ours,
        ...(theirs !== undefined && { peers: { BullMQ: theirs } }),
        targets: [
          { text: `≤ ${MAX_BYTES} B`, value: ours, atMost: MAX_BYTES },
          ...(theirs === undefined
            ? []
            : [{ text: `≤ ${OF_BULLMQ} x BullMQ`, value: ours / theirs, atMost: OF_BULLMQ }]),
        ],
        detail: { jobs, inputBytes: INPUT_BYTES, how: "used_memory of INFO, the difference over all jobs" },
      });
      return [
        figure("jobMemoryQueued", queued, beside?.queued),
        figure("jobMemoryFinished", finished, beside?.finished),
      ];
    });
  },
};

/** A quarter of the jobs: theirs take several times as long. */
async function memoryOfPeer(
  bench: Bench,
  jobs: number,
  used: () => Promise<number>,
): Promise<{ queued: number; finished: number }> {
  const [peer] = REDIS_PEERS;
  const program = await startPeer(bench, peer!);
  return bench.during([program], async () => {
    bench.progress(`jobMemory, ${jobs / 4} jobs of ${peer!.name}`);
    const fill = (count: number): Promise<void> => program.ask("fill", { count, inputBytes: INPUT_BYTES });
    await fill(1_000);
    await program.ask("go");
    const before = await used();
    await fill(jobs / 4);
    const queued = ((await used()) - before) / (jobs / 4);
    await program.ask("go");
    return { queued, finished: ((await used()) - before) / (jobs / 4) };
  });
}

/** One page of 50 with each filter, the worst of them; counts. */
export const largeReads: Metric = {
  names: ["listPageMs", "countsMs"],
  async run(bench) {
    const million = bench.pick(1_000_000, 50_000);
    const store = redisOf(bench);
    const url = await store.place();
    bench.progress(`filling ${million} jobs`);
    await store.fill(bench, url, { kind: "noop", priority: 0, finished: true }, million / 2);
    await store.fill(bench, url, { kind: "noop", priority: 0 }, million / 2);
    const engine = await open(url, { jobs: [noop, unknown], logger: false });
    const { id: parent } = await engine.enqueue(noop, { n: 0 });
    const filters = {
      none: {},
      state: { state: "queued" },
      stateOfNone: { state: "running" },
      rareState: { state: "dead" },
      kind: { kind: "noop" },
      kindOfNone: { kind: "unknown" },
      parentOfNone: { parent },
      text: { text: "no such text" },
      before: { createdBefore: 1_000 },
      after: { createdAfter: Date.now() + 3_600_000 },
      several: { state: "succeeded", kind: "noop", text: "no such text" },
    } as const;
    const took: Record<string, number> = {};
    for (const [name, filter] of Object.entries(filters)) {
      const times: number[] = [];
      for (let round = 0; round < 3; round++) {
        const from = performance.now();
        await engine.list({ ...filter, limit: 50 });
        times.push(performance.now() - from);
      }
      took[name] = median(times);
    }
    const counts: number[] = [];
    for (let round = 0; round < 20; round++) {
      const from = performance.now();
      await engine.counts();
      counts.push(performance.now() - from);
    }
    await engine.close();
    await store.drop(url);
    const worst = Math.max(...Object.values(took));
    return [
      {
        name: "listPageMs",
        unit: "ms",
        ours: worst,
        targets: [{ text: "≤ 300 ms", value: worst, atMost: 300 }],
        detail: { jobs: million, ...took },
      },
      {
        name: "countsMs",
        unit: "ms",
        ours: median(counts),
        targets: [{ text: "≤ 5 ms", value: median(counts), atMost: 5 }],
        detail: { jobs: million },
      },
    ];
  },
};

/** Commands that one idle worker sends, whatever they are, and its connections. */
export const idleCommands: Metric = {
  names: ["idleCommands"],
  async run(bench) {
    const ms = bench.pick(60_000, 20_000);
    // A server of its own: what others send is not counted.
    const store = new TestedRedis();
    const url = await store.place();
    const program = await bench.start("idle", { url });
    try {
      return await bench.during([program], async () => {
        bench.progress(`idleCommands: one idle worker for ${(SETTLE_MS + ms) / 1000} s`);
        await delay(SETTLE_MS);
        const commands = await sentDuring(url, ms);
        const connections = await connectionsTo(store);
        const perSecond = (1_000 * commands.length) / ms;
        return [
          {
            name: "idleCommands",
            unit: "commands/s" as const,
            ours: perSecond,
            targets: [
              { text: "≤ 0.5 commands/s", value: perSecond, atMost: 0.5 },
              { text: "2 connections", value: connections, atMost: 2 },
            ],
            detail: { ms, connections, how: "MONITOR of a server that has only this worker" },
          },
        ];
      });
    } finally {
      store.destroyNow();
    }
  },
};

/** Polls of a worker that finds nothing to do become seldom within half a minute. */
const SETTLE_MS = 35_000;

/** Lines of MONITOR; what scripts call is not in them. */
async function sentDuring(url: string, ms: number): Promise<readonly string[]> {
  const socket = connectTo(Number(new URL(url).port), "127.0.0.1");
  let heard = "";
  socket.setEncoding("latin1").on("data", (text: string) => (heard += text));
  socket.write("MONITOR\r\n");
  await delay(ms);
  socket.destroy();
  return heard.split("\r\n").filter((line) => /^\+[\d.]+ \[\d+ [^l]/.test(line));
}

async function connectionsTo(store: TestedRedis): Promise<number> {
  const count = async (type: string): Promise<number> => {
    const text = String(await store.command("CLIENT", "LIST", "TYPE", type)).trim();
    return text === "" ? 0 : text.split("\n").length;
  };
  // Our own connection that asks is one of the normal ones.
  return (await count("normal")) - 1 + (await count("pubsub"));
}

export const drainAlways: Metric = {
  names: ["drainAlways"],
  async run(bench) {
    const jobs = bench.pick(50_000, 10_000);
    const store = new TestedRedis("always");
    const drainers = await Drainers.start(bench, await store.place(), 1);
    try {
      return await bench.during(drainers.programs, async () => {
        const rates: number[] = [];
        await drainers.round(2_000);
        for (const _ of bench.rounds(`drainAlways, ${jobs} jobs`, 3, 6))
          rates.push(...(await drainers.round(jobs)).rates);
        await drainers.stop();
        const ours = median(rates);
        return [
          {
            name: "drainAlways",
            unit: "jobs/s" as const,
            ours,
            targets: [{ text: "≥ 12,000 jobs/s", value: ours, atLeast: 12_000 }],
            detail: { jobs, concurrency: CONCURRENCY, settings: "appendfsync always" },
          },
        ];
      });
    } finally {
      store.destroyNow();
    }
  },
};
