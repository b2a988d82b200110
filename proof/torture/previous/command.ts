// `npm run torture -- --previous`: an older package next to this one, on both stores.
import { tmpdir } from "node:os";
import { join } from "node:path";
import { mkdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { checkOut, commitOf, provideRuntime } from "../../../scripts/checkout.ts";
import { cleanUpInEveryCase } from "../../../src/torture/run.ts";
import { scratchFolder } from "../../../src/torture/scratch-store.ts";
import { PostgresServer } from "../../servers/postgres-server.ts";
import { wholeNumber } from "../arguments.ts";
import { type Figures, runWithPrevious } from "./run.ts";

/** Version 0.1.0. */
const PREVIOUS = "01d593d";
const ROOT = fileURLToPath(new URL("../../../", import.meta.url));
const MAX_PRINTED = 50;

export async function previous(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      previous: { type: "boolean" },
      at: { type: "string", default: PREVIOUS },
      store: { type: "string", default: "sqlite,postgres" },
      jobs: { type: "string", default: "400" },
      json: { type: "boolean", default: false },
      keep: { type: "boolean", default: false },
    },
  });
  const jobs = wholeNumber(values.jobs, "jobs");
  const stores = values.store.split(",");
  const unknown = stores.find((store) => store !== "sqlite" && store !== "postgres");
  if (unknown !== undefined) throw new Error(`--store ${unknown}: use sqlite or postgres.`);
  cleanUpInEveryCase();
  const scratch = scratchFolder(tmpdir(), values.keep, "torture");
  const commit = commitOf(ROOT, values.at);
  const previousTree = checkOut(ROOT, commit, scratch.folder);
  provideRuntime(ROOT, previousTree);
  let isSound = true;
  for (const store of stores) {
    const folder = join(scratch.folder, store);
    mkdirSync(folder);
    const figures = await onStore(store, folder, (url) =>
      runWithPrevious({ root: ROOT, previous: previousTree, url, folder, jobs }),
    );
    report(store, values.at, figures, values.json);
    if (figures.violations.length > 0) isSound = false;
  }
  if (!isSound) scratch.keep();
  return isSound;
}

async function onStore(store: string, folder: string, run: (url: string) => Promise<Figures>): Promise<Figures> {
  if (store === "sqlite") return run(`sqlite:${join(folder, "jobs.db")}`);
  const server = await PostgresServer.create({ fsync: false });
  process.once("exit", () => server.destroyNow());
  try {
    return await run(server.url());
  } finally {
    await server.destroy();
  }
}

function report(store: string, at: string, { violations, ...figures }: Figures, json: boolean): void {
  for (const sentence of violations.slice(0, MAX_PRINTED)) process.stderr.write(`violation: ${sentence}\n`);
  if (json) {
    process.stdout.write(`${JSON.stringify({ store, at, ...figures, violations: violations.length })}\n`);
    return;
  }
  const { jobs, begunBefore, begunAfter, begunByNew, sentences, storeFailures, endedAsReleased, counters } = figures;
  process.stdout.write(
    `${store}: ${jobs} jobs; workers of ${at} began ${begunBefore} attempts before the migration and ${begunAfter} after it, those of this version ${begunByNew}\n` +
      sentences.map((sentence) => `  they stopped: ${sentence}\n`).join("") +
      storeFailures.map((words) => `  the store failed for them: ${words}\n`).join("") +
      `  ${counters["crashes"]} crashes, ${counters["losses"]} losses of contact, ${endedAsReleased} handlers ended as their worker released them\n` +
      (violations.length === 0
        ? "  Nothing was lost, and nothing ended or was committed twice.\n"
        : `  ${violations.length} ${violations.length === 1 ? "thing" : "things"} went wrong.\n`),
  );
}
