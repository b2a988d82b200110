// `outlive torture`: kills and freezes worker processes for a while on a scratch store next to yours, then audits what is left. What it
// shows holds for this machine and this disk or server; nothing of yours is opened.
import { wholeNumber } from "../flags.ts";
import type { Register } from "../main.ts";

interface TortureFlags {
  readonly kills: number;
  readonly workers: number;
  readonly seed?: number;
  readonly keep?: true;
  readonly json?: boolean;
}

export const register: Register = (program, run) => {
  program
    .command("torture")
    .description("kill and freeze workers on a scratch store next to yours, then audit it; nothing of yours is touched")
    .option("--kills <n>", "how many workers are killed, from 1 to 100000", wholeNumber(1, 100_000), 30)
    .option("--workers <n>", "worker processes, from 3 to 64", wholeNumber(3, 64), 5)
    .option("--seed <n>", "of the jobs and of the kills (default: a new one each time)", wholeNumber(0, 2 ** 31))
    .option("--keep", "keep the store and print where it is")
    .addHelpText(
      "after",
      `
--store says next to which store: the scratch one is a file in the same folder, or a schema on the same server, and is removed at the end.
Progress is on stderr. Exit code 0: every promise held; 1: one did not, and the store is kept.`,
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
