// `outlive demo`: a run on a temporary store, shown live, and an audit of the result. Whatever happens, it ends, leaves
// no process and no file behind, and reports with its exit code whether every promise held: 0 yes, 1 no.
import { tmpdir } from "node:os";
import { money } from "../torture/audit.ts";
import { ALIVE, atEnd, cleanUpInEveryCase, type Observer, type Outcome, run } from "../torture/run.ts";
import { scratchFile, scratchStore } from "../torture/scratch-store.ts";
import { CONCURRENCY, HEARTBEAT, LEASE, LEASE_MS } from "../torture/tables.ts";
import {
  count,
  eventText,
  liveScreen,
  LiveView,
  millis,
  paint,
  type Part,
  plainScreen,
  type Screen,
  seconds,
  thousands,
  wantsColour,
} from "./screen.ts";

/** The share of `--seconds` during which workers are killed; the rest is start, drain and audit. */
const KILLING = 0.72;
const MAX_WORK_MS = 250;
/** Violations beyond this many add nothing new. */
const MAX_PRINTED = 50;

/** Runs the demo once in this process, takes over its signals and its exit, and returns the exit code. */
export async function demo(options: DemoOptions): Promise<number> {
  const { url, jobs, workers, seconds, seed, keep, json } = options;
  cleanUpInEveryCase();
  const timeLimitMs = seconds * 2_000 + 30_000;
  endWhateverHappens(timeLimitMs + 45_000);
  const scratch = { purpose: "demo", keep } as const;
  const where = url === null ? scratchFile(tmpdir(), scratch) : await scratchStore(url, scratch);
  const screen = makeScreen(options);
  atEnd(() => screen.end());
  const killMs = seconds * 1_000 * KILLING;
  const outcome = await run(
    {
      where,
      workers,
      seed,
      end: { afterMs: killMs },
      freezes: 1,
      killEveryMs: Math.max(400, killMs / 22),
      workMs: Math.min(MAX_WORK_MS, (workers * CONCURRENCY * killMs * ALIVE) / jobs),
      transfers: jobs,
      timeLimitMs,
    },
    shownOn(screen),
  );
  await where.remove();
  if (json) {
    for (const sentence of outcome.violations.slice(0, MAX_PRINTED)) process.stderr.write(`violation: ${sentence}\n`);
    process.stdout.write(`${jsonLine(outcome)}\n`);
  } else printSummary(process.stdout, outcome);
  return outcome.violations.length === 0 ? 0 : 1;
}

function shownOn(screen: Screen): Observer {
  let view: LiveView | undefined;
  let watching: Promise<void> | undefined;
  const end = new AbortController();
  return {
    began(engine, fleet) {
      view = new LiveView(engine, fleet);
      watching = view.watch(end.signal, (now) => screen.show(now));
    },
    killed: (what) => screen.report(view!.note(what, "bad")),
    heard(place, event) {
      const line = eventText(view!.fleet, place, event);
      if (event.name === "write.rejected") view!.refusedWrite(event.lease.worker);
      if (line) screen.report(view!.note(line.text, line.mood));
    },
    poisoned: (place) => screen.report(view!.poisoned(place)),
    async ended() {
      end.abort();
      await watching;
      screen.show(await view!.read());
      screen.end();
    },
  };
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

/** The run has its own time limit; this one is for an engine that never returns. */
function endWhateverHappens(ms: number): void {
  setTimeout(() => {
    process.stderr.write(`violation: the engine did not return within ${ms / 1_000} s\n`);
    process.exit(1);
  }, ms).unref();
}

// The options of the demo, with their limits and defaults.

export interface DemoOptions {
  /** The server to run on, in a schema of the demo's own; null: a temporary file. */
  readonly url: string | null;
  /** The name of the store. */
  readonly store: string;
  /** How many transfers to make; the poison job is extra. */
  readonly jobs: number;
  readonly workers: number;
  /** About how long the whole demo takes. */
  readonly seconds: number;
  readonly seed: number;
  readonly json: boolean;
  readonly keep: boolean;
}

/** Whole numbers, both ends included. */
export const LIMITS = {
  jobs: { min: 100, max: 200_000, default: 5_000 },
  workers: { min: 2, max: 16, default: 4 },
  seconds: { min: 5, max: 600, default: 20 },
  seed: { min: 0, max: 2 ** 31 },
} as const;

export function newSeed(): number {
  return Math.floor(Math.random() * 1e6);
}

// The summary of the demo, for people (what was done, what was recovered, what is in the data, one incident) and for
// programs (one line).

function jsonLine(outcome: Outcome): string {
  const { store, audit, kills, resumeMs, jobsPerSecond } = outcome;
  const { enqueued, succeeded, lost, committedTwice, quarantined, poison, zombies, staleWritesRejected } = audit;
  const { p50, p99, max } = resumeMs.ofAll;
  return JSON.stringify({
    store,
    enqueued,
    succeeded,
    lost,
    committedTwice,
    quarantined,
    poison,
    kills,
    zombies,
    staleWritesRejected,
    recoveryMs: { p50, p99, max },
    jobsPerSecond,
  });
}

function printSummary(stream: NodeJS.WriteStream, outcome: Outcome): void {
  const width = stream.isTTY ? Math.max(20, stream.columns - 1) : 200;
  const coloured = wantsColour(stream);
  for (const parts of lines(outcome)) stream.write(`${paint(parts, width, coloured)}\n`);
}

function lines(outcome: Outcome): Part[][] {
  return [...done(outcome), ...back(outcome), ...checked(outcome), ...incident(outcome), ...end(outcome)];
}

function done({ kills, killedAtOnce, poisoned, zombies }: Outcome): Part[][] {
  const lines: Part[][] = [
    [],
    heading("What was done to it"),
    figure(kills, `workers killed with SIGKILL, ${killedAtOnce} of them at the same moment`),
    figure(poisoned, "more killed by the poison job, until it was in quarantine"),
  ];
  for (const { held, frozenAt, wokenAt } of zombies)
    if (wokenAt !== null)
      lines.push(
        figure(
          1,
          `worker frozen with ${count(held, "job")} for ${seconds(wokenAt - frozenAt)} (its lease is ${seconds(LEASE_MS)}), then woken`,
        ),
      );
  return lines;
}

function back(outcome: Outcome): Part[][] {
  const { recoveredJobs, killsWithJobs, resumeMs, audit } = outcome;
  const { staleWritesRejected, zombies, keptSteps } = audit;
  const pad = " ".repeat(9);
  return [
    [],
    heading("What came back"),
    figure(recoveredJobs, `jobs were held by ${count(killsWithJobs, "killed worker")} and ran again`),
    [pad, ["bold", millis(resumeMs.othersAlive.p50)], " from the kill to the last of them running again (median)"],
    [pad, ["bold", millis(resumeMs.othersAlive.max)], " at worst while others were alive"],
    [pad, ["bold", millis(resumeMs.nobodyLeft.max)], " when all were dead and a new process had to start first"],
    figure(keptSteps, "steps of dead attempts kept, not run again"),
    figure(staleWritesRejected, `stale writes refused, of ${count(zombies, "zombie")}`),
    figure(outcome.jobsPerSecond, "jobs per second meanwhile, each with its own work to wait for"),
  ];
}

function checked({ audit, violations }: Outcome): Part[][] {
  const { enqueued, succeeded, quarantined, ledgerRows, balance, verdicts } = audit;
  return [
    [],
    heading("What is in the data"),
    [["dim", `  ${thousands(enqueued)} jobs enqueued, ${thousands(succeeded)} succeeded, ${quarantined} quarantined`]],
    [["dim", `  ${thousands(ledgerRows)} rows in the ledger, ${money(balance)} in the accounts`]],
    ...verdicts.map(({ title, violations: broken }): Part[] =>
      broken.length === 0 ? [["green", "  ✓ "], title] : [["red", "  ✗ "], ["red", title], ` (${broken.length})`],
    ),
    ...violations.slice(0, 20).map((sentence): Part[] => [["red", `  ✗ ${sentence}`]]),
    ...(violations.length > 20 ? [[["red", `  ... and ${violations.length - 20} more`]] as Part[]] : []),
  ];
}

function incident({ report }: Outcome): Part[][] {
  if (report === null) return [];
  return [
    [],
    heading("One of the incidents, as the store keeps it"),
    ...report
      .trimEnd()
      .split("\n")
      .map((line): Part[] => [["dim", "  │ "], line]),
  ];
}

function end({ violations, elapsedMs, seed }: Outcome): Part[][] {
  const took = ["dim", `  (${seconds(elapsedMs)}, --seed ${seed})`] as const;
  return [
    [],
    violations.length === 0
      ? [[["bold", "green"], " Nothing was lost, and nothing was done twice."], took]
      : [[["bold", "red"], ` ${count(violations.length, "thing")} went wrong.`], took],
    [],
  ];
}

function heading(text: string): Part[] {
  return [["bold", ` ${text}`]];
}

function figure(value: number, text: string): Part[] {
  return [["bold", `${thousands(value).padStart(7)}  `], text];
}
