// The metrics of `--collections`, in the order in which they are run and printed. One broker of the bench's own serves all of them.
import { mkdtempSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { RabbitmqServer } from "../../servers/rabbitmq-server.ts";
import { percentile, round } from "../figure.ts";
import type { Bench, Metric, Program } from "../harness.ts";
import type { StoreName } from "../stores/tested-store.ts";

const MIB = 1024 * 1024;
/** A quorum queue younger than this may lose what it has confirmed when its broker is killed. */
const QUEUE_AGE_MS = 2_000;

let started: Promise<RabbitmqServer> | undefined;

function broker(): Promise<RabbitmqServer> {
  started ??= RabbitmqServer.create().then((server) => {
    process.once("exit", () => server.destroyNow());
    return server;
  });
  return started;
}

interface Place {
  readonly folder: string;
  /** Starts the program on the same store and broker. Each kind has queues of its own. */
  start(more: { kind: string; messageMax: number; bare?: boolean; holds?: boolean }): Promise<Program>;
}

async function withPlace<T>(bench: Bench, work: (place: Place) => Promise<T>): Promise<T> {
  const url = await bench.store.place();
  const folder = mkdtempSync(join(tmpdir(), "outlive-bench-blobs-"));
  const server = await broker();
  let folders = 0;
  try {
    return await work({
      folder,
      start: (more) =>
        bench.start("collections", {
          url,
          broker: server.url(),
          bare: false,
          holds: false,
          ...more,
          folder: join(folder, more.bare ? `bare${folders++}` : "blobs"),
        }),
    });
  } finally {
    await bench.endAll();
    await bench.store.drop(url);
    rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
  }
}

interface Ran {
  readonly seconds: number;
  readonly cpuMs: number;
}

interface Pair {
  readonly ours: Ran;
  readonly bare: Ran;
}

/**
 * Rounds of ours next to the base. The first warms up. Both empty their files after each: in a virtual machine a page that was never used costs five times as
 * much as one that a file has left, so the side that keeps its files would pay for that. They are not deleted: for some seconds ext4 looks at every inode
 * that was deleted before it makes a new one.
 */
async function pairs(bench: Bench, name: string, one: (n: number) => Promise<Pair>): Promise<Pair[]> {
  const found: Pair[] = [];
  for (const n of bench.rounds(name, bench.pick(6, 4), 15)) {
    const pair = await one(n);
    if (n > 1) found.push(pair);
  }
  return found;
}

function rateOf(name: string, found: readonly Pair[], megabytes: number, what: string, least: number) {
  const middle = (of: (pair: Pair) => number): number => percentile(found.map(of), 50);
  const share = middle(({ ours, bare }) => bare.seconds / ours.seconds);
  return {
    name,
    unit: "MB/s" as const,
    ours: middle(({ ours }) => megabytes / ours.seconds),
    base: { what, value: middle(({ bare }) => megabytes / bare.seconds) },
    targets: [{ text: `≥ ${least} of the base`, value: share, atLeast: least }],
    detail: {
      how: "medians of rounds that alternate; the share is the median of the rounds' own",
      share: round(share),
      cpuShare: round(middle(({ ours, bare }) => bare.cpuMs / ours.cpuMs)),
      rounds: found.length,
      megabytes,
    },
  };
}

function fromBroker(
  name: string,
  kind: string,
  bytes: number,
  counts: readonly [number, number],
  least: number,
): Metric {
  return {
    names: [name],
    run: (bench) =>
      withPlace(bench, async (place) => {
        const count = bench.pick(...counts);
        const queue = `bench.bare.${kind}`;
        const ours = await place.start({ kind, messageMax: 16_000_000 });
        const bare = await place.start({ kind, messageMax: 16_000_000, bare: true });
        // The queues are made by the first worker.
        await Promise.all([ours.told("connected"), ours.ask("start")]);
        await ours.ask("stop");
        const found = await pairs(bench, name, async (n) => {
          const id = `${kind}-${n}`;
          await ours.ask("collect", { id, parts: count });
          await ours.ask("send", { id, count, bytes });
          await bare.ask("send", { id, queue, count, bytes });
          const pair =
            n % 2 === 0
              ? { ours: await ours.ask<Ran>("run", { count }), bare: await bare.ask<Ran>("run", { queue, count }) }
              : { bare: await bare.ask<Ran>("run", { queue, count }), ours: await ours.ask<Ran>("run", { count }) };
          await Promise.all([ours.ask("clear"), bare.ask("clear")]);
          return pair;
        });
        const what = "bare consume + sha256 + file with fsync + ack";
        return [rateOf(name, found, (count * bytes) / 1e6, what, least)];
      }),
  };
}

const embedded: Metric = {
  names: ["collectEmbedded"],
  run: (bench) =>
    withPlace(bench, async (place) => {
      const [count, lanes] = [bench.pick(200, 60), 8];
      const ours = await place.start({ kind: "embedded", messageMax: 16_000_000 });
      const bare = await place.start({ kind: "embedded", messageMax: 16_000_000, bare: true });
      const ofHashed: number[] = [];
      const found = await pairs(bench, "collectEmbedded", async (n) => {
        const of = { id: `e-${n}`, count, bytes: MIB, lanes };
        await ours.ask("collect", { id: of.id, parts: count });
        const runs = {
          ours: () => ours.ask<Ran>("put", of),
          hashed: () => bare.ask<Ran>("put", { ...of, hashes: true }),
          bare: () => bare.ask<Ran>("put", of),
        };
        const order = ["ours", "hashed", "bare"] as const;
        const ran = {} as Record<keyof typeof runs, Ran>;
        for (const side of n % 2 === 0 ? order : order.toReversed()) {
          ran[side] = await runs[side]();
          await (side === "ours" ? ours : bare).ask("clear");
        }
        if (n > 1) ofHashed.push(ran.hashed.seconds / ran.ours.seconds);
        return ran;
      });
      const what = "bare file + fsync, 8 of 1 MiB at once";
      const figure = rateOf("collectEmbedded", found, (count * MIB) / 1e6, what, 0.7);
      // What is left of the difference if the base makes the hash that a part is named by, too.
      return [{ ...figure, detail: { ...figure.detail, shareOfHashed: round(percentile(ofHashed, 50)) } }];
    }),
};

const memory: Metric = {
  names: ["collectMemoryMb"],
  run: (bench) =>
    withPlace(bench, async (place) => {
      const [bytes, count] = [16 * MIB, bench.pick(45, 30)];
      const sender = await place.start({ kind: "memory", messageMax: bytes });
      await Promise.all([sender.told("connected"), sender.ask("start")]);
      await sender.ask("stop");
      await sender.ask("collect", { id: "m", parts: count });
      await sender.ask("send", { id: "m", count, bytes });
      await sender.end();
      const ours = await place.start({ kind: "memory", messageMax: bytes });
      const { peakRss } = await ours.ask<{ peakRss: number }>("run", { count });
      const ourMb = peakRss / 1e6;
      return [
        {
          name: "collectMemoryMb",
          unit: "MB" as const,
          ours: ourMb,
          targets: [{ text: "≤ 256 + 150 MB", value: ourMb, atMost: 406 }],
          detail: { how: "largest RSS of a worker with `memory` of 256 MB", messages: count, messageMiB: 16 },
        },
      ];
    }),
};

const redelivered: Metric = {
  names: ["redeliveredMs"],
  run: (bench) =>
    withPlace(bench, async (place) => {
      const [kills, count] = [bench.pick(25, 6), 30];
      const of = { kind: "redelivered", messageMax: 16_000_000 };
      const ours = await place.start(of);
      await Promise.all([ours.told("connected"), ours.ask("start")]);
      const took: number[] = [];
      let held = 0;
      for (let kill = 1; kill <= kills; kill++) {
        const victim = await place.start({ ...of, holds: true });
        await Promise.all([victim.told("connected"), victim.ask("start")]);
        const id = `r-${kill}`;
        await ours.ask("collect", { id, parts: count });
        await ours.ask("forget");
        await ours.ask("send", { id, count, bytes: 100_000 });
        // What it does not get after a while is in the other's hands.
        let has = -1;
        for (let now = 0; has !== now || now === 0; await pause(150)) {
          has = now;
          now = (await ours.ask<number[]>("accepted")).length;
          if (now === count) break;
        }
        const before = (await ours.ask<number[]>("accepted")).length;
        held += count - before;
        const killedAt = Number(process.hrtime.bigint()) / 1e6;
        await victim.kill();
        for (;;) {
          const all = await ours.ask<number[]>("accepted");
          if (all.length === count) {
            took.push(...all.slice(before).map((at) => at - killedAt));
            break;
          }
          await pause(10);
        }
        bench.progress(`redeliveredMs: kill ${kill} of ${kills}`);
      }
      const p99 = percentile(took, 99);
      return [
        {
          name: "redeliveredMs",
          unit: "ms" as const,
          ours: p99,
          targets: [{ text: "≤ 100 ms (p99)", value: p99, atMost: 100 }],
          detail: {
            how: "from SIGKILL of a consumer to the durable part, in another process",
            kills,
            messages: held,
            p50: percentile(took, 50),
            largest: Math.max(...took),
          },
        },
      ];
    }),
};

const consumingAgain: Metric = {
  names: ["consumingAgainMs"],
  run: (bench) =>
    withPlace(bench, async (place) => {
      const [kills, count] = [bench.pick(3, 1), 20];
      const server = await broker();
      const ours = await place.start({ kind: "again", messageMax: 16_000_000 });
      await Promise.all([ours.told("connected"), ours.ask("start")]);
      const took: number[] = [];
      for (let kill = 1; kill <= kills; kill++) {
        const id = `a-${kill}`;
        await ours.ask("stop");
        await ours.ask("collect", { id, parts: count });
        await pause(QUEUE_AGE_MS);
        // Confirmed, and not consumed before the broker dies.
        await ours.ask("send", { id, count, bytes: 10_000 });
        await ours.ask("forget");
        await server.kill();
        const lost = ours.told("lost");
        await ours.ask("start");
        await lost;
        const restarted = server.start();
        await untilOpen(server.port);
        const openAt = Number(process.hrtime.bigint()) / 1e6;
        await restarted;
        let all: number[] = [];
        for (; all.length < count; await pause(10)) all = await ours.ask<number[]>("accepted");
        took.push(all[0]! - openAt);
        bench.progress(`consumingAgainMs: kill ${kill} of ${kills}`);
      }
      const largest = Math.max(...took);
      return [
        {
          name: "consumingAgainMs",
          unit: "ms" as const,
          ours: largest,
          targets: [{ text: "≤ 2,000 ms after its port opens", value: largest, atMost: 2_000 }],
          detail: { how: "broker killed and restarted; every confirmed message came", kills, messages: kills * count },
        },
      ];
    }),
};

async function untilOpen(port: number): Promise<void> {
  for (;;) {
    const isOpen = await new Promise<boolean>((resolve) => {
      const socket = connect(port, "127.0.0.1");
      socket.once("connect", () => (socket.destroy(), resolve(true)));
      socket.once("error", () => resolve(false));
    });
    if (isOpen) return;
    await pause(5);
  }
}

const report: Metric = {
  names: ["missingReportMs"],
  run: (bench) =>
    withPlace(bench, async (place) => {
      const parts = bench.pick(1_000_000, 100_000);
      const ours = await place.start({ kind: "report", messageMax: 16_000_000 });
      const found: Record<string, number> = {};
      // One gap, a gap in every thousand, and every second ordinal.
      for (const every of [parts - 5, 1_000, 2]) {
        const id = `every-${every}`;
        await ours.ask("collect", { id, parts });
        await ours.ask("fillParts", { id, parts, every });
        const took: number[] = [];
        for (let n = 0; n < 5; n++) took.push((await ours.ask<{ ms: number }>("report", { id })).ms);
        found[every === 2 ? "everySecond" : every === 1_000 ? "everyThousandth" : "oneMissing"] = percentile(took, 50);
        bench.progress(`missingReportMs: ${id}`);
      }
      const slowest = Math.max(...Object.values(found));
      return [
        {
          name: "missingReportMs",
          unit: "ms" as const,
          ours: slowest,
          targets: [{ text: "≤ 100 ms", value: slowest, atMost: 100 }],
          detail: {
            how: "engine.collection(id), the slowest of three patterns, median of 5",
            ordinals: parts,
            ...found,
          },
        },
      ];
    }),
};

const idle: Metric = {
  names: ["collectionsIdleQueries"],
  run: (bench) =>
    withPlace(bench, async (place) => {
      const count = bench.pick(10_000, 1_000);
      const ours = await place.start({ kind: "idle", messageMax: 16_000_000 });
      await ours.ask("openMany", { count });
      const { calls, perSecond, ms } = await ours.ask<{ calls: number; perSecond: number; ms: number }>("idlePass");
      return [
        {
          name: "collectionsIdleQueries",
          unit: "queries/s" as const,
          ours: calls * perSecond,
          targets: [{ text: "≤ 1 query/s", value: calls * perSecond, atMost: 1 }],
          detail: {
            how: "calls of a pass of the maintenance about collections, and passes in a second",
            open: count,
            passMs: round(ms),
          },
        },
      ];
    }),
};

const everywhere = [
  // Enough for the start of a worker, about 0.1 s of CPU, not to be a part of the figure.
  fromBroker("collect1MiB", "large", MIB, [300, 60], 0.8),
  fromBroker("collect100KiB", "small", 100 * 1024, [2_400, 300], 0.65),
  embedded,
  memory,
  redelivered,
  consumingAgain,
  report,
  idle,
];

export const collectionMetrics: Readonly<Record<StoreName, readonly Metric[]>> = {
  sqlite: everywhere,
  postgres: everywhere,
  redis: everywhere,
};
