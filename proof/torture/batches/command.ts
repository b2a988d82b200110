// The command line of the rig for batches.
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { migrationsOf } from "../../../src/stores/registry.ts";
import { atEnd, cleanUpInEveryCase } from "../../../src/torture/run.ts";
import { scratchFolder } from "../../../src/torture/scratch-store.ts";
import { PostgresServer } from "../../servers/postgres-server.ts";
import { RedisServer } from "../../servers/redis-server.ts";
import { wholeNumber } from "../arguments.ts";
import { type BatchesOutcome, runBatches } from "./run.ts";

/** Violations beyond this many of one law say nothing new. */
const MAX_PRINTED = 10;
const NOT_RUN = [
  "zombies, broken networks, full disks and times from kill to rerun: the rig of processes",
  "power loss: --power-loss",
];

export async function batches(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      batches: { type: "boolean" },
      store: { type: "string", default: "sqlite" },
      kills: { type: "string", default: "200" },
      total: { type: "string" },
      seconds: { type: "string" },
      seed: { type: "string", default: "1" },
      workers: { type: "string", default: "4" },
      json: { type: "boolean", default: false },
      keep: { type: "boolean", default: false },
    },
  });
  const { store } = values;
  if (store !== "sqlite" && store !== "postgres" && store !== "redis")
    throw new Error(`--store ${store}: use sqlite, postgres or redis.`);
  const [kills, seed] = [wholeNumber(values.kills, "kills"), wholeNumber(values.seed, "seed")];
  const workers = wholeNumber(values.workers, "workers");
  const total = values.total === undefined ? null : wholeNumber(values.total, "total");
  const forMs = values.seconds === undefined ? null : wholeNumber(values.seconds, "seconds") * 1_000;
  cleanUpInEveryCase();
  const scratch = scratchFolder(tmpdir(), values.keep, "torture");
  await using end = new AsyncDisposableStack();
  let server: PostgresServer | RedisServer | null = null;
  if (store === "postgres") {
    const started = await PostgresServer.create({ fsync: true });
    server = started;
    atEnd(() => started.destroyNow());
    end.defer(() => started.destroy());
    await (await migrationsOf(started.url())).up();
  }
  if (store === "redis") {
    const started = await RedisServer.create({ fsync: "always" });
    server = started;
    atEnd(() => started.destroyNow());
    end.defer(() => started.destroy());
  }
  const url = server ? server.url() : `sqlite:${join(scratch.folder, "jobs.db")}`;
  const outcome = await runBatches({
    url,
    kills,
    batches: total,
    forMs,
    seed,
    workers,
    folder: scratch.folder,
    server,
  });
  const line = lineOf(store, seed, outcome);
  const isSound = isKept(outcome);
  for (const [law, broken] of Object.entries(outcome.findings))
    for (const one of (broken as readonly string[]).slice(0, MAX_PRINTED)) process.stderr.write(`${law}: ${one}\n`);
  if (!isSound)
    process.stderr.write(
      `npm run torture -- --batches --store ${store} --kills ${kills}${total === null ? "" : ` --total ${total}`} --seed ${seed}\n`,
    );
  process.stdout.write(
    values.json
      ? `${JSON.stringify(line)}\n`
      : `${outcome.kills} kills, ${outcome.batches} batches of ${outcome.rows} rows\n${isSound ? "Every promise held.\n" : `broken: ${JSON.stringify(line)}\n`}`,
  );
  if (!isSound) {
    scratch.keep();
    process.stderr.write(`Histories and store are kept in ${scratch.folder}.\n`);
  }
  return isSound;
}

export function isKept({ findings, poison, poisonFound }: BatchesOutcome): boolean {
  return poisonFound === poison && Object.values(findings).every((broken: readonly string[]) => broken.length === 0);
}

/** The last line of `--json`. */
export function lineOf(store: string, seed: number, outcome: BatchesOutcome): Record<string, unknown> {
  const { findings, kills, acts, takeovers, staleWritesRejected, rows, poison, poisonFound, poisonDeaths } = outcome;
  const counts = Object.fromEntries(
    Object.entries(findings).map(([law, broken]) => [law, (broken as readonly string[]).length]),
  ) as Record<keyof typeof findings, number>;
  const { others, ...laws } = counts;
  return {
    store,
    seed,
    kills,
    takeovers,
    staleWritesRejected,
    enqueued: rows,
    lost: laws.rowsLost,
    committedTwice: laws.rowsTwice,
    quarantined: poisonFound + laws.innocentRowsQuarantined,
    quarantinedInnocents: laws.innocentRowsQuarantined,
    poison,
    faults: acts,
    batches: outcome.batches,
    rows,
    ...laws,
    poisonFound,
    poisonDeaths,
    otherViolations: others,
    notRun: NOT_RUN,
  };
}
