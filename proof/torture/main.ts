// `npm run torture -- [--batches | --collections | --features | --power-loss | --kill-at-call | --restore | --migrate | --previous | --requests] ...`: picks the rig by the option that only it has, or that of the processes if none
// is given; the whole line is then its own.
// Each rig ends with one line of JSON if it was asked for it, and with exit code 1 on any violation.
import { USAGE } from "./usage.ts";

/** A rig takes its arguments and returns whether every promise was kept. */
type Rig = (args: readonly string[]) => Promise<boolean>;

const RIGS: Readonly<Record<string, () => Promise<Rig>>> = {
  "--collections": async () => (await import("./collections/command.ts")).collections,
  "--batches": async () => (await import("./batches/command.ts")).batches,
  "--features": async () => (await import("./features/command.ts")).features,
  "--power-loss": async () => (await import("./power-loss/command.ts")).powerLoss,
  "--kill-at-call": async () => (await import("./kill-at-call/command.ts")).killAtCall,
  "--migrate": async () => (await import("./migrate/command.ts")).migrateLarge,
  "--previous": async () => (await import("./previous/command.ts")).previous,
  "--requests": async () => (await import("./requests/command.ts")).requests,
  "--restore": async () => (await import("./restore/command.ts")).restore,
};

const args = process.argv.slice(2);
const chosen = args.filter((arg) => arg in RIGS);
try {
  if (chosen.length > 1) throw new Error(`Choose one rig: ${Object.keys(RIGS).join(" or ")}.`);
  if (args.includes("--help")) process.stdout.write(USAGE);
  else {
    const rig = chosen[0] === undefined ? (await import("./processes/command.ts")).processes : await RIGS[chosen[0]]!();
    if (!(await rig(args))) process.exitCode = 1;
  }
} catch (thrown) {
  process.stderr.write(`${(thrown as Error).message}\n`);
  process.exitCode = 1;
}
