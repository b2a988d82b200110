// The command line of the restores.
import { tmpdir } from "node:os";
import { parseArgs } from "node:util";
import { cleanUpInEveryCase } from "../../../src/torture/run.ts";
import { scratchFolder } from "../../../src/torture/scratch-store.ts";
import { wholeNumber } from "../arguments.ts";
import { STORES } from "./replaceable-store.ts";
import { runRestores } from "./run.ts";

/** Violations beyond this many say nothing new. */
const MAX_PRINTED = 50;

export async function restore(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      restore: { type: "boolean" },
      store: { type: "string", default: "sqlite" },
      rounds: { type: "string", default: "3" },
      seed: { type: "string", default: "1" },
      workers: { type: "string", default: "4" },
      json: { type: "boolean", default: false },
      keep: { type: "boolean", default: false },
    },
  });
  const { store } = values;
  const openStore = STORES[store];
  if (!openStore) throw new Error(`--store ${store}: use ${Object.keys(STORES).join(" or ")}.`);
  const [rounds, seed] = [wholeNumber(values.rounds, "rounds"), wholeNumber(values.seed, "seed")];
  const workers = wholeNumber(values.workers, "workers");
  cleanUpInEveryCase();
  const scratch = scratchFolder(tmpdir(), values.keep, "torture");
  const replaceable = await openStore(scratch.folder);
  const { violations, ...figures } = await runRestores(replaceable, { rounds, seed, workers, folder: scratch.folder });
  const isSound = violations.length === 0;
  for (const sentence of violations.slice(0, MAX_PRINTED)) process.stderr.write(`violation: ${sentence}\n`);
  if (values.json)
    process.stdout.write(`${JSON.stringify({ store, seed, ...figures, violations: violations.length })}\n`);
  else
    process.stdout.write(
      `${figures.restores} restores under living workers: ${figures.stoppedLoudly} of ${figures.oldWorkers} stopped and said why\n` +
        `${figures.enqueued} jobs: ${figures.takenBack} more were taken back with their time, ${figures.lost} lost, ${figures.committedTwice} committed twice\n` +
        (isSound
          ? "Every promise held.\n"
          : `${violations.length} ${violations.length === 1 ? "thing" : "things"} went wrong.\n`),
    );
  if (!isSound) {
    const again = `npm run torture -- --restore --store ${store} --rounds ${rounds} --seed ${seed} --workers ${workers}`;
    process.stderr.write(`The same plan again, at the pace of the machine: ${again}\n`);
    scratch.keep();
  }
  if (scratch.isKept) await replaceable.keepIn(scratch.folder);
  return isSound;
}
