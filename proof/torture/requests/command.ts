// The command line of the rig for requests.
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { migrationsOf } from "../../../src/stores/registry.ts";
import { atEnd, cleanUpInEveryCase } from "../../../src/torture/run.ts";
import { scratchFolder } from "../../../src/torture/scratch-store.ts";
import { PostgresServer } from "../../servers/postgres-server.ts";
import { RedisServer } from "../../servers/redis-server.ts";
import { wholeNumber } from "../arguments.ts";
import { runRequests } from "./run.ts";

/** Violations beyond this many of one law say nothing new. */
const MAX_PRINTED = 10;
const STORES = ["sqlite", "postgres", "redis"];

export async function requests(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      requests: { type: "boolean" },
      store: { type: "string", default: "sqlite" },
      kills: { type: "string", default: "200" },
      seconds: { type: "string" },
      seed: { type: "string", default: "1" },
      workers: { type: "string", default: "3" },
      "in-flight": { type: "string", default: "200" },
      plant: { type: "string" },
      json: { type: "boolean", default: false },
      keep: { type: "boolean", default: false },
    },
  });
  const { store, plant } = values;
  if (!STORES.includes(store)) throw new Error(`--store ${store}: use ${STORES.join(", ")}.`);
  if (plant !== undefined && plant !== "resend") throw new Error(`--plant ${plant}: use resend.`);
  const number = (name: "kills" | "seed" | "workers" | "in-flight"): number => wholeNumber(values[name], name);
  const seconds = values.seconds === undefined ? null : wholeNumber(values.seconds, "seconds");
  cleanUpInEveryCase();
  const scratch = scratchFolder(tmpdir(), values.keep, "torture");
  await using end = new AsyncDisposableStack();
  const url = await addressOf(store, scratch.folder, end);
  const [kills, seed] = [number("kills"), number("seed")];
  const outcome = await runRequests({
    url,
    folder: scratch.folder,
    kills,
    forMs: seconds === null ? null : seconds * 1_000,
    seed,
    workers: number("workers"),
    inFlight: number("in-flight"),
    plant: plant === "resend",
  });
  const { findings, decisions, enqueued, takeovers, staleWritesRejected, maxInFlight, cuts } = outcome;
  const isSound = Object.values(findings).every((broken: readonly string[]) => broken.length === 0);
  for (const [law, broken] of Object.entries(findings))
    for (const one of (broken as readonly string[]).slice(0, MAX_PRINTED)) process.stderr.write(`${law}: ${one}\n`);
  if (!isSound)
    process.stderr.write(
      `npm run torture -- --requests --store ${store} --kills ${kills} --seed ${seed}${seconds === null ? "" : ` --seconds ${seconds}`}\n`,
    );
  const line = {
    store,
    seed,
    kills: outcome.kills,
    takeovers,
    staleWritesRejected,
    enqueued,
    lost: findings.lost.length,
    committedTwice: findings.callbacksTwice.length,
    quarantined: findings.quarantined.length,
    // No request of this rig is guilty.
    quarantinedInnocents: findings.quarantined.length,
    detectMs: outcome.detectMs,
    resumeMs: outcome.resumeMs,
    sentAgain: decisions["resend"] ?? 0,
    neverSent: decisions["unsent"] ?? 0,
    asked: decisions["ask"] ?? 0,
    failedUnknown: decisions["unknown"] ?? 0,
    sentTwice: findings.sentTwice.length,
    callbacksTwice: findings.callbacksTwice.length,
    callbacksMissing: findings.callbacksMissing.length,
    inversions: findings.inversions.length,
    otherViolations: findings.others.length,
    maxInFlight,
    cutConnections: cuts,
    notRun: ["zombies, broken networks of the store and power loss: the other rigs"],
  };
  process.stdout.write(
    values.json
      ? `${JSON.stringify(line)}\n`
      : `${outcome.kills} kills, ${enqueued} requests, at most ${maxInFlight} in flight\n${isSound ? "Every promise held.\n" : `broken: ${JSON.stringify(line)}\n`}`,
  );
  if (!isSound) scratch.keep();
  return isSound;
}

async function addressOf(store: string, folder: string, end: AsyncDisposableStack): Promise<string> {
  if (store === "postgres") {
    const server = await PostgresServer.create({ fsync: true });
    atEnd(() => server.destroyNow());
    end.defer(() => server.destroy());
    await (await migrationsOf(server.url())).up();
    return server.url();
  }
  if (store === "redis") {
    const server = await RedisServer.create({ fsync: "always" });
    atEnd(() => server.destroyNow());
    end.defer(() => server.destroy());
    return server.url();
  }
  return `sqlite:${join(folder, "jobs.db")}`;
}
