// `outlive torture`: kills worker, producer and supervisor processes for a while on a scratch store beside yours, then audits what is
// left. What it shows holds for this machine and this disk; nothing of yours is opened.
import { fileURLToPath } from "node:url";
import { wholeNumber } from "../flags.ts";
import type { Register } from "../main.ts";

interface TortureFlags {
  readonly kills: number;
  readonly workers: number;
  readonly seed?: number;
  readonly keep?: true;
  readonly json?: boolean;
}

const BIN = fileURLToPath(new URL(`../bin${import.meta.url.endsWith(".ts") ? ".ts" : ".js"}`, import.meta.url));

export const register: Register = (program, run) => {
  program
    .command("torture")
    .description(
      "kill, freeze and overload processes on a scratch store beside yours, then audit it; nothing of yours is touched",
    )
    .option("--kills <n>", "how many processes are killed, from 1 to 100000", wholeNumber(1, 100_000), 30)
    .option("--workers <n>", "worker processes, from 3 to 64", wholeNumber(3, 64), 5)
    .option("--seed <n>", "of the jobs and of the violence (default: a new one each time)", wholeNumber(0, 2 ** 31))
    .option("--keep", "keep the store and the histories, and say where they are")
    .addHelpText(
      "after",
      `
--store says beside which store: the scratch one is a file in the same folder, or a schema on the same server, and is removed at the end.
Progress is on stderr. Exit code 0: every promise held; 1: one did not, and the store and the histories are kept.`,
    )
    .action(
      run(async ({ config }, command) => {
        const flags = command.optsWithGlobals<TortureFlags>();
        const { kills, workers, seed = Math.floor(Math.random() * 1e6), keep = false, json = false } = flags;
        // Loaded here: no other command needs it.
        const [{ run: torture }, { scratchPlace }] = await Promise.all([
          import("../../torture/main.ts"),
          import("../../torture/place.ts"),
        ]);
        const { store } = await config();
        const { strike, scratch, ...place } = await scratchPlace(store, keep);
        const seats = { worker: workers, producer: 2, supervisor: 1 };
        const notRun = [
          "full disk, a failing server or network, power loss: only from the repository, by npm run torture",
        ];
        const { folder } = scratch;
        const plan = { ...place, folder, directUrl: place.url, kills, seed, seats, cli: BIN, faults: [], notRun };
        // Without the store, whose address may hold a password.
        const again = `outlive torture --kills ${kills} --workers ${workers} --seed ${seed}`;
        try {
          return await torture(plan, { json, keep: () => scratch.keep(), again });
        } finally {
          await strike();
        }
      }),
    );
};
