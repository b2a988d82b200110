// What a lossy failover costs on Redis: a replica is cut off for a second while a worker works, the primary is killed, and the replica is promoted. Everything that
// the second brought is gone with it, unless the process to which it was acknowledged sends it again.
import { setTimeout as delay } from "node:timers/promises";
import { systemClock, systemRandom } from "../../../src/platform/clock.ts";
import type { Store } from "../../../src/stores/port.ts";
import { redisAddress } from "../../../src/stores/redis/address.ts";
import { Connection, type Loss } from "../../../src/stores/redis/connection.ts";
import { connect } from "../../../src/stores/redis/driver.ts";
import { redisStore } from "../../../src/stores/redis/store.ts";
import { draft, kind, roomFor, SETTLE, workerRecord } from "../../../src/testing/conformance/fixture.ts";
import { RedisServer } from "../../servers/redis-server.ts";
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";

const CUT_OFF_MS = 1_000;
const PRIMARY = "bench";
const SETTINGS = { "repl-diskless-sync-delay": "0" };
const PATIENCE_MS = 60_000;

interface Failover {
  /** From the death of the primary to the first claim at the other one. */
  readonly tookMs: number;
  readonly isEpochRaised: boolean;
  /** How many operations were missing by the report, and how many jobs and ends were sent again. */
  readonly loss: Loss | undefined;
  readonly fencesTwice: number;
  /** Jobs that were acknowledged and never ended. */
  readonly lost: number;
}

export const lossyFailover: Metric = {
  names: ["lossyFailover"],
  async run(bench) {
    const rounds: Failover[] = [];
    const count = bench.pick(3, 1);
    for (let round = 1; round <= count; round++) {
      bench.progress(`lossyFailover: round ${round} of ${count}`);
      rounds.push(await failOver());
    }
    const sum = (of: (round: Failover) => number): number => rounds.reduce((total, round) => total + of(round), 0);
    return [
      {
        name: "lossyFailover",
        unit: "ms",
        ours: median(rounds.map(({ tookMs }) => tookMs)),
        targets: [
          {
            text: "epoch raised before the first claim",
            value: sum(({ isEpochRaised }) => (isEpochRaised ? 0 : 1)),
            atMost: 0,
          },
          { text: "loss reported with a number", value: sum(({ loss }) => (loss?.operations ? 0 : 1)), atMost: 0 },
          { text: "no fence twice", value: sum(({ fencesTwice }) => fencesTwice), atMost: 0 },
          { text: "no acknowledged job lost", value: sum(({ lost }) => lost), atMost: 0 },
        ],
        detail: {
          rounds: count,
          cutOffMs: CUT_OFF_MS,
          operationsLost: sum(({ loss }) => loss?.operations ?? 0),
          jobsSentAgain: sum(({ loss }) => loss?.jobs ?? 0),
          endsSentAgain: sum(({ loss }) => loss?.ends ?? 0),
          how: "from the SIGKILL of the primary to the first claim, a sentinel promotes the replica after half a second",
        },
      },
    ];
  },
};

async function failOver(): Promise<Failover> {
  const servers: RedisServer[] = [];
  const started = async (options: Parameters<typeof RedisServer.create>[0]): Promise<RedisServer> => {
    const server = await RedisServer.create(options);
    servers.push(server);
    process.once("exit", () => server.destroyNow());
    return server;
  };
  let store: Store | undefined;
  try {
    const primary = await started({ fsync: "everysec", settings: SETTINGS });
    const replicaof = `127.0.0.1 ${primary.port}`;
    const replica = await started({ fsync: "everysec", settings: { ...SETTINGS, replicaof } });
    await until(async () => /state=online/.test(await ask(primary, "INFO", "replication")), "the replica is online");
    const sentinel = await started({ sentinelOf: { name: PRIMARY, port: primary.port } });
    await until(async () => /slaves=1/.test(await ask(sentinel, "INFO", "sentinel")), "the sentinel knows it");
    const losses: Loss[] = [];
    const connection = new Connection({
      address: redisAddress(`redis+sentinel://127.0.0.1:${sentinel.port}/${PRIMARY}`),
      random: systemRandom,
      clock: systemClock,
      onLoss: (loss) => void losses.push(loss),
    });
    store = redisStore({ connection, clock: systemClock, wakeups: null });
    return await measured(store, losses, { primary, replica });
  } finally {
    await store?.close();
    for (const server of servers) await server.destroy();
  }
}

async function measured(
  store: Store,
  losses: readonly Loss[],
  { primary, replica }: { readonly primary: RedisServer; readonly replica: RedisServer },
): Promise<Failover> {
  await store.declare([kind("mail")]);
  const { epoch: before } = await store.register(workerRecord("before"));
  const fences = new Map<string, number>();
  const enqueued: string[] = [];
  /** Enqueues ten, claims as many and ends half of them. */
  const work = async (worker: string): Promise<void> => {
    const ids = Array.from({ length: 10 }, (_, at) => `job-${enqueued.length + at}`);
    await store.enqueue(ids.map((id) => draft(id)));
    enqueued.push(...ids);
    await claim(worker, 5);
  };
  const claim = async (worker: string, ends: number) => {
    const { claimed } = await store.turn(worker, [], roomFor(10));
    for (const { lease } of claimed) {
      const fence = `${lease.jobId} ${lease.epoch} ${lease.fence}`;
      fences.set(fence, (fences.get(fence) ?? 0) + 1);
    }
    const ended = claimed.slice(0, ends).map((job) => SETTLE.succeed(job));
    if (ended.length > 0) await store.turn(worker, ended, roomFor(0));
    return claimed;
  };
  await work("before");
  const offset = async (of: RedisServer): Promise<string | undefined> =>
    /(?:master|slave)_repl_offset:(\d+)/.exec(await ask(of, "INFO", "replication"))?.[1];
  await until(async () => (await offset(primary)) === (await offset(replica)), "the replica has all of it");

  await ask(replica, "REPLICAOF", "127.0.0.1", "1");
  for (const from = performance.now(); performance.now() - from < CUT_OFF_MS;) await work("before");
  const killedAt = performance.now();
  await primary.kill();
  // A sentinel promotes only what it knows to be a replica of that primary.
  await ask(replica, "REPLICAOF", "127.0.0.1", String(primary.port));
  const next = workerRecord("after", { predecessor: "before" });
  await until(() => store.register(next).then(Boolean, () => false), "the store is there again");
  let first = await claim("after", 10);
  const tookMs = performance.now() - killedAt;
  const isEpochRaised = first.length > 0 && first.every(({ lease }) => lease.epoch > before);
  while (first.length > 0) first = await claim("after", 10);
  let lost = 0;
  for (const id of enqueued) if ((await store.inspect.get(id))?.state !== "succeeded") lost++;
  const fencesTwice = [...fences.values()].filter((times) => times > 1).length;
  return { tookMs, isEpochRaised, loss: losses[0], fencesTwice, lost };
}

async function ask(server: RedisServer, ...args: readonly string[]): Promise<string> {
  const wire = await connect({ url: server.url() });
  try {
    return String(await wire.call(args, 5_000));
  } finally {
    wire.close();
  }
}

async function until(is: () => Promise<boolean>, what: string): Promise<void> {
  for (const from = performance.now(); !(await is());) {
    if (performance.now() - from > PATIENCE_MS) throw new Error(`waited a minute without effect until ${what}`);
    await delay(20);
  }
}
