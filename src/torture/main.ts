// One run in this process, whose signals and end it takes over. Whatever happens, it ends by itself, leaves no process behind, and says
// with its exit code whether every promise held: 0 yes, 1 no.
import { cleanUpInEveryCase } from "../demo/clean-up.ts";
import { jsonLine, text } from "./outcome.ts";
import { type Plan, torture } from "./rig.ts";

/** Violations beyond this many say nothing new. */
const MOST_TOLD = 50;

export async function run(plan: Plan, json: boolean): Promise<number> {
  cleanUpInEveryCase();
  const status = process.stderr;
  const outcome = await torture(plan, {
    tell: (what) => void status.write(`${what}\n`),
    progress: ({ kills, zombies, elapsedMs }) => {
      const left = kills === 0 ? "" : `, about ${seconds((elapsedMs / kills) * Math.max(0, plan.kills - kills))} to go`;
      const line = `${seconds(elapsedMs)}: ${kills} of ${plan.kills} kills, ${zombies} zombies${left}`;
      if (status.isTTY) status.write(`\r\x1b[K${line}`);
      else if (Math.round(elapsedMs / 1_000) % 10 === 0) status.write(`${line}\n`);
    },
  });
  if (status.isTTY) status.write("\r\x1b[K");
  for (const sentence of outcome.slowest) status.write(`slow: ${sentence}\n`);
  if (json) {
    for (const [name, times] of outcome.acts) status.write(`${times} times: ${name}\n`);
    for (const sentence of outcome.violations.slice(0, MOST_TOLD)) status.write(`violation: ${sentence}\n`);
    process.stdout.write(`${jsonLine(outcome)}\n`);
  } else process.stdout.write(`${text(outcome)}\n`);
  return outcome.violations.length === 0 ? 0 : 1;
}

function seconds(ms: number): string {
  return `${Math.round(ms / 1_000)} s`;
}
