// `outlive demo`: shows on a temporary store of its own what the promises are worth. Neither the configuration nor the store of
// this folder is touched.
import { isPostgres, shownAddress } from "../../backends.ts";
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import { type DemoOptions, LIMITS, newSeed } from "../../demo/options.ts";
import { wholeNumber } from "../flags.ts";
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

export const register: Register = (program, run) => {
  const { jobs, workers, seconds, seed } = LIMITS;
  const within = ({ min, max }: { readonly min: number; readonly max: number }) => wholeNumber(min, max);
  const range = (what: string, { min, max }: { readonly min: number; readonly max: number }): string =>
    `${what}, from ${min} to ${max}`;
  program
    .command("demo")
    .description("kill workers for a while on a temporary file, then audit what is left; nothing of yours is touched")
    .option("--seconds <n>", range("about how long it takes", seconds), within(seconds), seconds.default)
    .option("--jobs <n>", range("transfers to make", jobs), within(jobs), jobs.default)
    .option("--workers <n>", range("worker processes", workers), within(workers), workers.default)
    .option("--seed <n>", "of the jobs and of the kills (default: a new one each time)", within(seed))
    .option("--keep", "keep the store and print where it is")
    .addHelpText(
      "after",
      `
Here --store is sqlite, a temporary file (the default), or the address of a PostgreSQL server, on which the demo makes a schema of its
own and drops it. \`--store postgres\` takes that address from OUTLIVE_DEMO_POSTGRES_URL. Progress with --json is on stderr.
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
  const { jobs, workers, seconds, seed = newSeed(), keep = false, json = false, store: named = "sqlite" } = flags;
  return { url: urlOf(named), jobs, workers, seconds, seed, keep, json };
}

/** Null: a temporary file. */
function urlOf(store: string): string | null {
  if (store === "sqlite") return null;
  if (isPostgres(store)) return store;
  if (store !== "postgres")
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `There is no demo on the store "${shownAddress(store)}". There is: sqlite, postgres.`,
      "Omit --store: the demo makes a temporary file of its own.",
      { store: shownAddress(store) },
    );
  const url = process.env["OUTLIVE_DEMO_POSTGRES_URL"];
  if (url) return url;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    "The demo on PostgreSQL needs a server, and none was named.",
    "Name one: outlive demo --store postgres://user:password@host/database",
  );
}
