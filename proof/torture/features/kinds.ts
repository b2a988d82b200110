// The kinds of the rig for waiting and keys. Each handler says when it starts and ends, in a line that is in the history before anything that
// follows from it; the parent knows when it killed whom. Instants are of the monotonic clock of this machine, which all processes share.
import { appendFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { job, TerminalError } from "../../../src/index.ts";
import { isPlanted } from "./plants.ts";

/** One line of a history. */
export interface Line {
  readonly what: "start" | "end" | "heard" | "woken" | "saw" | "slept";
  readonly kind: string;
  readonly key: string;
  readonly job: string;
  readonly attempt: number;
  /** Which of the worker processes, counted from 1. Pids come again. */
  readonly process: number;
  readonly at: number;
  readonly n: number;
}

export function instant(): number {
  return Number(process.hrtime.bigint() / 1_000n) / 1_000;
}

const history = process.env["OUTLIVE_FEATURES_HISTORY"];
const number = Number(process.env["OUTLIVE_FEATURES_PROCESS"]);

function say(line: Omit<Line, "process" | "at">): void {
  if (history === undefined) return;
  appendFileSync(history, `${JSON.stringify({ ...line, process: number, at: instant() })}\n`);
}

const retry = { attempts: 1_000, crashes: 1_000, backoff: { base: "20ms", max: "100ms" } } as const;
/** The rate of `paced`, and what may start at once. */
export const RATE = { rate: 10, per: "1s", burst: 3 } as const;
/** How long a `napper` sleeps, each time. */
export const NAP_MS = 80;
export const THROTTLE_EVERY_MS = 400;
/** How long a `calm` event waits for a further one. */
export const CALM_MS = 150;
/** Events of keys that begin with this are not put off for longer. */
export const BOUNDED = { prefix: "bounded-", maxMs: 500 } as const;

export interface Keyed {
  readonly key: string;
  readonly n: number;
}

/** At most one of a key. Some fail once, some sleep: both give the slot to the next. */
export const limited = job<Keyed>("limited", {
  retry,
  limits: [{ name: "one", key: ({ key }) => key, running: isPlanted("limit") ? 5 : 1 }],
});
limited.handle(async ({ key, n }, run) => {
  const of = { kind: "limited", key, job: run.id, attempt: run.attempt, n };
  say({ ...of, what: "start" });
  await pause(Math.max(0, n % 15));
  if (isPlanted("room") && n % 3 === 2) await run.holdOff("one", "1h");
  const begun = await run.step("begun", () => run.attempt);
  say({ ...of, what: "end" });
  if (n % 14 === 0 && begun === run.attempt) throw new Error("it fails once");
  // Every attempt comes to it: one that ended without that would be a WAIT_MISMATCH.
  if (n % 14 === 7) await run.sleep("10ms");
});

/** At most this many starts in a second. They last, so that kills waste some of them. */
export const paced = job<Keyed>("paced", {
  retry,
  limits: [{ name: "pace", key: ({ key }) => key, ...RATE, ...(isPlanted("rate") && { rate: 50 }) }],
});
paced.handle(async ({ key, n }, run) => {
  say({ what: "start", kind: "paced", key, job: run.id, attempt: run.attempt, n });
  await pause(150);
});

/** One after the other, in the order of `n`. */
export const ordered = job<Keyed>("ordered", {
  retry,
  limits: [{ name: "line", key: ({ key }) => key, ...(isPlanted("order") ? { running: 4 } : { order: "strict" }) }],
});
ordered.handle(async ({ key, n }, run) => {
  const of = { kind: "ordered", key, job: run.id, attempt: run.attempt, n };
  say({ ...of, what: "start" });
  await pause(Math.max(0, n % 10));
  if (n % 5 === 0 && run.attempt === 1) throw new Error("it fails once");
  if (n % 5 === 2) await run.sleep("20ms");
  say({ ...of, what: "end" });
});

/** A child. Every third does not succeed. */
export const ward = job<{ readonly n: number }>("ward", { retry });
ward.handle(async ({ n }) => {
  await pause(n % 10);
  if (n % 3 === 1) throw new TerminalError("it is meant to fail");
  return n;
});

export function wardsOf(n: number): { readonly n: number }[] {
  return Array.from({ length: 1 + (n % 5) }, (_, i) => ({ n: n + i }));
}

/** Waits for its children, however they end. */
export const parent = job<{ readonly n: number }>("parent", { retry });
parent.handle(async ({ n }, run) => {
  const wards = wardsOf(n);
  const ends = await run.wait(await run.enqueueMany(ward, wards));
  const wrong = ends.filter((end, i) =>
    end.state === "succeeded" ? end.result !== wards[i]!.n : end.state !== "dead",
  );
  if (wrong.length > 0) throw new TerminalError(`children ended otherwise: ${JSON.stringify(wrong)}`);
  say({ what: "woken", kind: "parent", key: "", job: run.id, attempt: run.attempt, n });
});

/** Reads three signals, and says which. */
export const listener = job<{ readonly n: number }>("listener", { retry });
listener.handle(async (_, run) => {
  for (let i = 0; i < 3; i++) {
    const heard = await run.waitForSignal<number>("go");
    await run.step(`heard ${i}`, () =>
      say({ what: "heard", kind: "listener", key: "", job: run.id, attempt: run.attempt, n: heard! }),
    );
  }
});

/** Sleeps twice, and says for how long. */
export const napper = job<{ readonly n: number }>("napper", { retry });
napper.handle(async (_, run) => {
  for (let i = 0; i < 2; i++) {
    const from = await run.step(`lies down ${i}`, () => instant());
    await run.sleep(`${NAP_MS}ms`);
    await run.step(`gets up ${i}`, () =>
      say({ what: "slept", kind: "napper", key: "", job: run.id, attempt: run.attempt, n: instant() - from }),
    );
  }
});

/** Each sees the latest event of its key: a rerun, a debounced one, a throttled one. */
export const event = job<Keyed>("event", { retry });
export const calm = job<Keyed>("calm", { retry });
export const slow = job<Keyed>("slow", { retry });
for (const kind of [event, calm, slow])
  kind.handle(async ({ key, n }, run) => {
    say({ what: "saw", kind: kind.name, key, job: run.id, attempt: run.attempt, n });
    await pause(n % 20);
  });

export const KINDS = [limited, paced, ordered, ward, parent, listener, napper, event, calm, slow] as const;
