// `outlive demo`: shows on a temporary file of its own what the promises are worth. Neither the configuration nor the store of
// this folder is touched.
import { isPostgres, shownAddress } from "../../backends.ts";
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import { type DemoOptions, LIMITS, newSeed, STORES } from "../../demo/options.ts";
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
  const within = ({ least, most }: { readonly least: number; readonly most: number }) => wholeNumber(least, most);
  const range = (what: string, { least, most }: { readonly least: number; readonly most: number }): string =>
    `${what}, from ${least} to ${most}`;
  program
    .command("demo")
    .description("kill workers for a while on a temporary file, then audit what is left; nothing of yours is touched")
    .option("--seconds <n>", range("about how long it takes", seconds), within(seconds), seconds.usual)
    .option("--jobs <n>", range("transfers to make", jobs), within(jobs), jobs.usual)
    .option("--workers <n>", range("worker processes", workers), within(workers), workers.usual)
    .option("--seed <n>", "of the jobs and of the kills (default: a new one each time)", within(seed))
    .option("--keep", "keep the database and say where it is")
    .addHelpText(
      "after",
      `
Here --store takes the name of a kind of store: ${STORES.join(", ")} (default sqlite), or the address of a PostgreSQL server, on
which the demo makes a schema of its own and drops it. Without an address (or OUTLIVE_DEMO_POSTGRES_URL) it starts a server of its
own from the machine's binaries. Progress with --json is on stderr.
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
  const given = isPostgres(named) ? named : (process.env["OUTLIVE_DEMO_POSTGRES_URL"] ?? null);
  const store = isPostgres(named) ? "postgres" : STORES.find((name) => name === named);
  if (store === undefined)
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `There is no demo on the store "${shownAddress(named)}". There is: ${STORES.join(", ")}.`,
      "Leave --store away: the demo makes a temporary file of its own.",
      { store: shownAddress(named) },
    );
  return { store, url: store === "postgres" ? given : null, jobs, workers, seconds, seed, keep, json };
}
