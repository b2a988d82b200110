// The command line of the rig of processes: a store of its own on a small disk or on a server of its own, the faults of its surroundings,
// and the run.
import { spawnSync } from "node:child_process";
import { cpSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { atEnd, cleanUpInEveryCase } from "../../../src/torture/run.ts";
import { scratchFolder, scratchSchema } from "../../../src/torture/scratch-store.ts";
import { wholeNumber } from "../arguments.ts";
import { BACK_AND_FORTH, ONE_WORKER, shiftableClocks } from "../faults/clock.ts";
import { frozenCommit } from "../faults/frozen-commit.ts";
import { PgBouncer } from "../faults/pgbouncer.ts";
import { Proxy } from "../faults/proxy.ts";
import { reset } from "../faults/reset.ts";
import { startPulse, startRedis } from "../faults/redis.ts";
import { startServer } from "../faults/server.ts";
import { fillingDisk, mountSmallDisk } from "../faults/small-disk.ts";
import { writeLock } from "../faults/write-lock.ts";
import type { Fault } from "./fault-schedule.ts";
import type { WorkerStart } from "./fleet.ts";
import { LEDGER } from "./ledger.ts";
import { run } from "./main.ts";
import type { Plan } from "./rig.ts";

const CLI = fileURLToPath(new URL("../../../src/cli/bin.ts", import.meta.url));
const POOL_WORKER = fileURLToPath(new URL("pool-worker.ts", import.meta.url));
/** The worker in a PID namespace of its own: as on another host, no kernel can prove anything about it to the others. */
const ELSEWHERE = 1;
const IN_A_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"];
/** Shorter than the lease, so that contact with it is lost before it is silent. */
const CONTACT = "600ms";
/** More than enough for the jobs of a run of this many kills; it is in memory, but takes only what is on it. */
const diskMegabytes = (kills: number): number => 256 + Math.ceil(kills / 5);
/** That, with 1 GB of write-ahead log, and tables that are vacuumed now and then. */
const serverDiskMegabytes = (kills: number): number => 2_560 + Math.ceil(kills / 3);

/** On every store. */
const RIGS_OF_THEIR_OWN = [
  "power loss: a rig of its own, --power-loss (SQLite)",
  "kill at the N-th write or sync: a rig of its own, --kill-at-call (SQLite)",
  "an older copy of the store under living workers: a rig of its own, --restore",
];

interface Setting {
  readonly kills: number;
  readonly workers: number;
  readonly folder: string;
  /** Whether all but the judge go through PgBouncer. */
  readonly pgbouncer: boolean;
  /** Whether workers on PostgreSQL show that they live on a Redis server, which is tortured, too. */
  readonly liveness: boolean;
}

interface Surroundings extends Pick<Plan, "url" | "directUrl" | "schema" | "faults" | "notRun" | "workerAt" | "env"> {
  /** Puts the store, which goes with the process, where it stays. */
  readonly copyTo: (folder: string) => void | Promise<void>;
}

const STORES: Readonly<Record<string, (setting: Setting) => Promise<Surroundings>>> = {
  sqlite: onSqlite,
  postgres: onPostgres,
  redis: onRedis,
};

export async function processes(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      store: { type: "string", default: "sqlite" },
      kills: { type: "string" },
      faults: { type: "string" },
      rounds: { type: "string", default: "1" },
      pgbouncer: { type: "boolean", default: false },
      liveness: { type: "boolean", default: false },
      seed: { type: "string", default: "1" },
      workers: { type: "string", default: "6" },
      json: { type: "boolean", default: false },
      keep: { type: "boolean", default: false },
    },
  });
  const surround = STORES[values.store];
  if (!surround) throw new Error(`--store ${values.store}: use ${Object.keys(STORES).join(" or ")}.`);
  const { pgbouncer, liveness } = values;
  if (liveness && values.store !== "postgres") throw new Error("--liveness: use it with --store postgres.");
  if (pgbouncer && values.store !== "postgres") throw new Error("--pgbouncer: use it with --store postgres.");
  // Faults that are named are tried on their own, unless kills are asked for, too.
  const kills = wholeNumber(values.kills ?? (values.faults === undefined ? "200" : "0"), "kills");
  const [seed, workers] = [wholeNumber(values.seed, "seed"), wholeNumber(values.workers, "workers")];
  const rounds = wholeNumber(values.rounds, "rounds");
  cleanUpInEveryCase();
  const scratch = scratchFolder(tmpdir(), values.keep, "torture");
  const { folder } = scratch;
  const { copyTo, faults: all, ...surroundings } = await surround({ kills, workers, folder, pgbouncer, liveness });
  const faults = chosenFaults(all, values.faults);
  const places = { worker: workers, producer: 2, supervisor: 1 };
  const code = await run(
    { ...surroundings, faults, store: values.store, kills, rounds, seed, places, folder, cli: CLI },
    {
      json: values.json,
      keep() {
        scratch.keep();
        return copyTo(folder);
      },
      again: [
        `npm run torture -- --store ${values.store} --kills ${kills} --seed ${seed} --workers ${workers}`,
        ...(values.faults === undefined ? [] : [`--faults ${values.faults}`]),
        ...(rounds === 1 ? [] : [`--rounds ${rounds}`]),
        ...(pgbouncer ? ["--pgbouncer"] : []),
        ...(liveness ? ["--liveness"] : []),
      ].join(" "),
    },
  );
  if (code === 0 && values.keep) await copyTo(folder);
  return code === 0;
}

/** All of them, or those whose keys are given, separated by commas. */
function chosenFaults(all: readonly Fault[], keys: string | undefined): readonly Fault[] {
  if (keys === undefined) return all;
  return keys.split(",").map((key) => {
    const found = all.find((fault) => fault.key === key);
    if (!found) throw new Error(`--faults ${key}: use ${all.map((fault) => fault.key).join(", ")}.`);
    return found;
  });
}

async function onSqlite({ kills, folder }: Setting): Promise<Surroundings> {
  const disk = mountSmallDisk(diskMegabytes(kills));
  const at = typeof disk === "string" ? folder : disk.folder;
  const file = join(at, "torture.db");
  const url = `sqlite:${file}`;
  const clocks = shiftableClocks(folder, BACK_AND_FORTH);
  return {
    url,
    directUrl: url,
    schema: null,
    env: clocks.env,
    faults: [...(typeof disk === "string" ? [] : [fillingDisk(disk)]), writeLock(file), clocks.fault],
    notRun: typeof disk === "string" ? [disk, ...RIGS_OF_THEIR_OWN] : RIGS_OF_THEIR_OWN,
    copyTo(kept) {
      if (at !== folder) cpSync(at, kept, { recursive: true });
    },
  };
}

/**
 * Through a proxy, all but the judge, who must see what is there: one door for each worker, and one for everybody else. Every second
 * worker is on a pool of its own.
 */
async function onPostgres({ kills, workers, folder, pgbouncer, liveness }: Setting): Promise<Surroundings> {
  const disk = mountSmallDisk(serverDiskMegabytes(kills));
  const server = await startServer(typeof disk === "string" ? null : disk);
  const schema = await scratchSchema(server.url, "torture");
  const pooler = pgbouncer ? await PgBouncer.before(server.url, "transaction") : null;
  if (pooler) atEnd(() => pooler.destroyNow());
  const pulse = liveness ? await startPulse() : null;
  const { proxy, urls } = await Proxy.before(pooler?.url ?? server.url, workers + 1);
  const clocks = shiftableClocks(folder, ONE_WORKER);
  const onOwnPool = (number: number): boolean => number % 2 === 0;
  // Deaths of a worker elsewhere are found later than those of the others, so it is there only if no process is killed.
  const elsewhere = kills === 0 && !pgbouncer && canUnshare() ? ELSEWHERE : null;
  const startOf = (number: number): Pick<WorkerStart, "program" | "launcher"> => {
    if (number === elsewhere) return { launcher: IN_A_NAMESPACE };
    return onOwnPool(number) ? { program: POOL_WORKER } : {};
  };
  return {
    url: urls[0]!,
    directUrl: server.url,
    schema,
    env: {
      ...clocks.env,
      ...(elsewhere !== null && { OUTLIVE_HEARTBEAT_CONTACT: CONTACT }),
      ...(pulse && { OUTLIVE_LIVENESS: pulse.url }),
    },
    workerAt: (number) => ({ url: urls[number]!, ...startOf(number) }),
    faults: [
      ...server.faults,
      ...proxy.faults,
      reset(proxy, elsewhere),
      ...(pooler ? [pooler.fault] : []),
      ...(pulse?.faults ?? []),
      clocks.fault,
      frozenCommit(({ number }) => pgbouncer || onOwnPool(number)),
    ],
    notRun: [
      ...(typeof disk === "string" ? [disk] : []),
      "power loss of a server: PostgreSQL's own write-ahead log is not replayed",
      ...(elsewhere === null && kills === 0 && !pgbouncer
        ? ["a worker in a PID namespace of its own: unshare is not permitted"]
        : []),
      ...RIGS_OF_THEIR_OWN,
    ],
    copyTo: (kept) => server.copyTo(kept, schema),
  };
}

/** With every write flushed before its reply, so that nothing that was acknowledged may be missing. Through a proxy, as on PostgreSQL. */
async function onRedis({ workers, folder }: Setting): Promise<Surroundings> {
  const server = await startRedis();
  const { proxy, urls } = await Proxy.before(server.url, workers + 1);
  const clocks = shiftableClocks(folder, ONE_WORKER);
  process.env[LEDGER] = "results";
  return {
    url: urls[0]!,
    directUrl: server.url,
    schema: null,
    env: { ...clocks.env, [LEDGER]: "results" },
    workerAt: (number) => ({ url: urls[number]! }),
    faults: [...server.faults, ...proxy.faults, reset(proxy, null), clocks.fault],
    notRun: [
      "a row of the user's in the same transaction: this store has no commit, the accepted results are the ledger",
      "a failover that loses something: tests of the store, test/redis",
      ...RIGS_OF_THEIR_OWN,
    ],
    copyTo: (kept) => server.copyTo(kept),
  };
}

function canUnshare(): boolean {
  const [program, ...args] = IN_A_NAMESPACE;
  return spawnSync(program!, [...args, "true"]).status === 0;
}
