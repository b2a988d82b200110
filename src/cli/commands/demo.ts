// `outlive demo`: shows on a temporary store of its own what the promises are worth. Neither the configuration nor the store of
// this folder is touched.
import { type DemoOptions, LIMITS, newSeed } from "../../demo/main.ts";
import { DEFAULT_STORE } from "../../engine/settings.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { shownAddress, storeAt, STORES } from "../../stores/registry.ts";
import { wholeNumber } from "../context.ts";
import type { Register } from "../main.ts";

interface DemoFlags {
  readonly jobs: number;
  readonly workers: number;
  readonly seconds: number;
  readonly seed?: number;
  readonly keep?: true;
  readonly json?: boolean;
  readonly store?: string;
}

export const demoCommand: Register = (program, run) => {
  const { jobs, workers, seconds, seed } = LIMITS;
  const within = ({ min, max }: { readonly min: number; readonly max: number }) => wholeNumber(min, max);
  const range = (what: string, { min, max }: { readonly min: number; readonly max: number }): string =>
    `${what}, from ${min} to ${max}`;
  program
    .command("demo")
    .description("kill workers on a temporary store for a while, then audit every transfer; your store is not touched")
    .option("--seconds <n>", range("about how long it takes", seconds), within(seconds), seconds.default)
    .option("--jobs <n>", range("transfers to make", jobs), within(jobs), jobs.default)
    .option("--workers <n>", range("worker processes", workers), within(workers), workers.default)
    .option("--seed <n>", "seed of the jobs and the kills (default: random)", within(seed))
    .option("--keep", "keep the store and print where it is")
    .addHelpText(
      "after",
      `
Here --store is sqlite, a temporary file (the default), or the address of a
PostgreSQL server, on which the demo creates a schema and drops it at the end.
\`--store postgres\` takes that address from OUTLIVE_DEMO_POSTGRES_URL.
Progress with --json is on stderr.
Exit code 0: every promise held; 1: one did not.`,
    )
    .action(
      run(async (_context, command) => {
        const options = optionsOf(command.optsWithGlobals<DemoFlags>());
        // Loaded here: no other command needs it.
        const { demo } = await import("../../demo/main.ts");
        return demo(options);
      }),
    );
};

function optionsOf(flags: DemoFlags): DemoOptions {
  const { jobs, workers, seconds, seed = newSeed(), keep = false, json = false, store: named = DEFAULT_STORE } = flags;
  const url = urlOf(named);
  return { url, store: url === null ? DEFAULT_STORE : storeAt(url).name, jobs, workers, seconds, seed, keep, json };
}

/** `store`: the name of a store, or the address of a server. Null: a temporary file. */
function urlOf(store: string): string | null {
  const named = STORES.find(({ name }) => name === store);
  if (named?.files) return null;
  if (!named && STORES.some((row) => !row.files && row.matches(store))) return store;
  if (!named)
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `There is no demo on the store "${shownAddress(store)}". There is: ${STORES.map(({ name }) => name).join(", ")}.`,
      "Omit --store: the demo then uses a temporary file.",
      { store: shownAddress(store) },
    );
  const url = process.env[`OUTLIVE_DEMO_${named.name.toUpperCase()}_URL`];
  if (url) return url;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `The demo on ${named.title} needs a server, and none was named.`,
    `Name one: outlive demo --store ${named.examples[0]}`,
  );
}

// `outlive torture`: kills and freezes worker processes for a while on a scratch store next to yours, then audits what is left. What it
// shows holds for this machine and this disk or server; nothing of yours is opened.

interface TortureFlags {
  readonly kills: number;
  readonly workers: number;
  readonly seed?: number;
  readonly keep?: true;
  readonly json?: boolean;
}

export const tortureCommand: Register = (program, run) => {
  program
    .command("torture")
    .description("kill and freeze workers on a scratch store next to yours, then audit it; your store is not touched")
    .option("--kills <n>", "how many workers are killed, from 1 to 100000", wholeNumber(1, 100_000), 30)
    .option("--workers <n>", "worker processes, from 3 to 64", wholeNumber(3, 64), 5)
    .option("--seed <n>", "seed of the jobs and the kills (default: random)", wholeNumber(0, 2 ** 31))
    .option("--keep", "keep the store and print where it is")
    .addHelpText(
      "after",
      `
--store says next to which store: the scratch one is a file in the same folder,
or a schema on the same server, and is removed at the end.
Progress is on stderr.
Exit code 0: every promise held; 1: one did not, and the store is kept.`,
    )
    .action(
      run(async ({ config }, command) => {
        const flags = command.optsWithGlobals<TortureFlags>();
        const { kills, workers, seed = Math.floor(Math.random() * 1e6), keep = false, json = false } = flags;
        // Loaded here: no other command needs it.
        const { torture } = await import("../../torture/main.ts");
        const { store } = await config();
        return torture({ store, kills, workers, seed, keep, json });
      }),
    );
};
