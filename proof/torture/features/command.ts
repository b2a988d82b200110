// The command line of the rig for waiting and keys.
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { migrationsOf } from "../../../src/stores/registry.ts";
import { cleanUpInEveryCase } from "../../../src/torture/run.ts";
import { scratchFolder } from "../../../src/torture/scratch-store.ts";
import { PostgresServer } from "../../servers/postgres-server.ts";
import { wholeNumber } from "../arguments.ts";
import { runFeatures } from "./run.ts";

/** Violations beyond this many of one law say nothing new. */
const MAX_PRINTED = 10;

export async function features(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      features: { type: "boolean" },
      store: { type: "string", default: "sqlite" },
      kills: { type: "string", default: "200" },
      seed: { type: "string", default: "1" },
      workers: { type: "string", default: "4" },
      keys: { type: "string", default: "50" },
      json: { type: "boolean", default: false },
      keep: { type: "boolean", default: false },
    },
  });
  const { store } = values;
  if (store !== "sqlite" && store !== "postgres") throw new Error(`--store ${store}: use sqlite or postgres.`);
  const [kills, seed] = [wholeNumber(values.kills, "kills"), wholeNumber(values.seed, "seed")];
  const [workers, keys] = [wholeNumber(values.workers, "workers"), wholeNumber(values.keys, "keys")];
  cleanUpInEveryCase();
  const scratch = scratchFolder(tmpdir(), values.keep, "torture");
  await using end = new AsyncDisposableStack();
  let url = `sqlite:${join(scratch.folder, "jobs.db")}`;
  if (store === "postgres") {
    const server = await PostgresServer.create({ fsync: true });
    end.defer(() => server.destroy());
    url = server.url();
    await (await migrationsOf(url)).up();
  }
  const { findings, ...figures } = await runFeatures({ url, kills, seed, workers, keys, folder: scratch.folder });
  const counts = Object.fromEntries(Object.entries(findings).map(([law, broken]) => [law, broken.length]));
  const isSound = Object.values(counts).every((count) => count === 0);
  for (const [law, broken] of Object.entries(findings))
    for (const one of (broken as readonly string[]).slice(0, MAX_PRINTED)) process.stderr.write(`${law}: ${one}\n`);
  if (values.json) process.stdout.write(`${JSON.stringify({ store, seed, ...figures, ...counts })}\n`);
  else
    process.stdout.write(
      `${figures.kills} kills, ${figures.enqueued} jobs, ${keys} keys\n${isSound ? "Every promise held.\n" : `broken: ${JSON.stringify(counts)}\n`}`,
    );
  if (!isSound) scratch.keep();
  return isSound;
}
