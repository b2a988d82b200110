// `outlive demo`: a run on a temporary store, shown while it goes on, and an audit of what is left. Whatever happens, it ends, leaves no
// process and no file behind, and says with its exit code whether every promise held: 0 yes, 1 no.
import { tmpdir } from "node:os";
import { ALIVE, atEnd, cleanUpInEveryCase, type Observer, run } from "../torture/run.ts";
import { scratchFile, scratchStore } from "../torture/scratch-store.ts";
import { CONCURRENCY, HEARTBEAT, LEASE } from "../torture/tables.ts";
import { LiveView } from "./live-view.ts";
import { eventText, liveScreen, plainScreen, type Screen, thousands } from "./screen.ts";
import { jsonLine, printSummary } from "./summary.ts";

/** The share of `--seconds` in which workers are killed; the rest is start, drain and audit. */
const KILLING = 0.72;
const MAX_WORK_MS = 250;
/** Violations beyond this many say nothing new. */
const MAX_PRINTED = 50;

/** Runs it once in this process, whose signals and end it takes over, and returns the exit code. */
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
    killed: (what) => screen.told(view!.note(what, "bad")),
    heard(place, event) {
      const line = eventText(view!.fleet, place, event);
      if (event.name === "write.rejected") view!.refusedWrite(event.lease.worker);
      if (line) screen.told(view!.note(line.text, line.mood));
    },
    poisoned: (place) => screen.told(view!.poisoned(place)),
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

/** The run has a time limit of its own; this is for an engine that never returns again. */
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
  /** Transfers to make; the poison job comes on top. */
  readonly jobs: number;
  readonly workers: number;
  /** About how long the whole takes. */
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
