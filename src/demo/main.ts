// `outlive demo`: a bank on a temporary SQLite file, workers that are killed all the time, and an audit of what is left.
// Whatever happens, it ends by itself, leaves no process and no file behind, and says with its exit code whether every promise
// held: 0 yes, 1 no.
import { atEnd, cleanUpInEveryCase } from "./clean-up.ts";
import { thousands } from "./ink.ts";
import type { DemoOptions } from "./options.ts";
import { play, timeLimitMs } from "./play.ts";
import { liveScreen, plainScreen, type Screen } from "./screen.ts";
import { HEARTBEAT, LEASE } from "./settings.ts";
import { jsonLine, printSummary } from "./summary.ts";

/** Violations beyond this many say nothing new. */
const MOST_TOLD = 50;

/** Plays it once in this process, whose signals and end it takes over, and answers the exit code. */
export async function demo(options: DemoOptions): Promise<number> {
  cleanUpInEveryCase();
  endWhateverHappens(options);
  const screen = makeScreen(options);
  atEnd(() => screen.end());
  const outcome = await play(options, screen);
  if (options.json) {
    for (const sentence of outcome.violations.slice(0, MOST_TOLD)) process.stderr.write(`violation: ${sentence}\n`);
    process.stdout.write(`${jsonLine(outcome)}\n`);
  } else printSummary(process.stdout, outcome);
  return outcome.violations.length === 0 ? 0 : 1;
}

function makeScreen({ json, store, jobs, workers, seed }: DemoOptions): Screen {
  const head = {
    title: `Outlive on ${store}: ${workers} workers, ${thousands(jobs)} transfers, 1 poison job`,
    settings: `heartbeat ${HEARTBEAT}, lease ${LEASE}, seed ${seed}`,
    enqueuing: jobs + 1,
  };
  if (json) return plainScreen(process.stderr, head);
  return process.stdout.isTTY ? liveScreen(process.stdout, head) : plainScreen(process.stdout, head);
}

/** The run has a time limit of its own; this is for an engine that never answers again. */
function endWhateverHappens(options: DemoOptions): void {
  const ms = timeLimitMs(options) + 45_000;
  setTimeout(() => {
    process.stderr.write(`violation: the engine did not answer within ${ms / 1_000} s\n`);
    process.exit(1);
  }, ms).unref();
}
