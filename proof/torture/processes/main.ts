// One run in this process, whose signals and end it takes over. Whatever happens, it ends on its own, leaves no process behind, and says
// with its exit code whether every promise held: 0 yes, 1 no. If one did not, what is left is kept, and the run can be made again.
import { cleanUpInEveryCase } from "../../../src/torture/run.ts";
import { jsonLine, text } from "./outcome.ts";
import { type Plan, torture } from "./rig.ts";

/** Violations beyond this many say nothing new. */
const MOST_TOLD = 50;

export interface RunOptions {
  readonly json: boolean;
  /** Keeps the histories and the store beyond the end of this process. */
  readonly keep: () => void | Promise<void>;
  /** The command that makes the same run again. */
  readonly again: string;
}

export async function run(plan: Plan, { json, keep, again }: RunOptions): Promise<number> {
  cleanUpInEveryCase();
  const status = process.stderr;
  const toBeSeen = async (): Promise<void> => {
    status.write(`The same plan again, at the pace of the machine: ${again}\n`);
    await keep();
  };
  const outcome = await torture(plan, {
    tell: (what) => void status.write(`${what}\n`),
    progress: ({ kills, zombies, elapsedMs }) => {
      const left = kills === 0 ? "" : `, about ${seconds((elapsedMs / kills) * Math.max(0, plan.kills - kills))} to go`;
      const line = `${seconds(elapsedMs)}: ${kills} of ${plan.kills} kills, ${zombies} zombies${left}`;
      if (status.isTTY) status.write(`\r\x1b[K${line}`);
      else if (Math.round(elapsedMs / 1_000) % 10 === 0) status.write(`${line}\n`);
    },
  }).catch(async (thrown: unknown) => {
    await toBeSeen();
    throw thrown;
  });
  if (status.isTTY) status.write("\r\x1b[K");
  for (const sentence of outcome.slowest) status.write(`slow: ${sentence}\n`);
  if (json) {
    for (const [name, times] of outcome.acts) status.write(`${times} times: ${name}\n`);
    for (const sentence of outcome.violations.slice(0, MOST_TOLD)) status.write(`violation: ${sentence}\n`);
    process.stdout.write(`${jsonLine(outcome)}\n`);
  } else process.stdout.write(`${text(outcome)}\n`);
  if (outcome.violations.length === 0) return 0;
  await toBeSeen();
  return 1;
}

function seconds(ms: number): string {
  return `${Math.round(ms / 1_000)} s`;
}
