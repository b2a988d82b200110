// `client.follow`: what happens to jobs, found by reading their rows. A wake-up only says when to read again.
import type { StoredError } from "../job/errors.ts";
import { isTerminal, type JobDetails } from "../job/job.ts";
import type { Json } from "../job/json.ts";
import { type Clock, type Duration, durationMs } from "../job/time.ts";
import type { Store } from "../stores/port.ts";
import { refuse } from "./option-checks.ts";

/** The options of `follow`. */
export interface FollowOptions {
  /** How long it waits between two reads, unless a wake-up comes. Default "500ms"; from "10ms" to "1h". */
  readonly every?: Duration;
  /** Ends it when it aborts. Default: none. */
  readonly signal?: AbortSignal;
}

/** The state of a job since this event. */
export type FollowedJob<Result = Json> = {
  /** The job's id. */
  readonly id: string;
  /** The name of its kind; empty if it is missing. */
  readonly kind: string;
  /** The number of its latest attempt; 0: it was never claimed. */
  readonly attempt: number;
} & (
  | {
      /** Its state. missing: it was removed, or its retention has passed. */
      readonly type: "queued";
      /** When it may be claimed, in milliseconds since 1970; null: at once. */
      readonly runAt: number | null;
      /** Its latest error; null if there was none. */
      readonly error: StoredError | null;
    }
  | {
      readonly type: "waiting";
      /** What it waits for, such as "run.sleep#1". */
      readonly at: string;
    }
  | {
      readonly type: "running";
      /** The id of its worker. */
      readonly worker: string | null;
      /** What it reported last by `run.progress`; null if nothing. */
      readonly progress: Json;
    }
  | {
      readonly type: "succeeded";
      /** What its handler returned. */
      readonly result: Result;
    }
  | { readonly type: "dead" | "cancelled" | "quarantined"; readonly error: StoredError | null }
  | { readonly type: "missing" }
);

/** Jobs that are read at once. */
const AT_ONCE = 50;

export async function* follow<Result>(
  store: Store,
  clock: Clock,
  ids: readonly string[],
  { every = "500ms", signal }: FollowOptions,
): AsyncGenerator<FollowedJob<Result>> {
  const everyMs = durationMs(every, "every of follow");
  refuse(everyMs < 10 || everyMs > 3_600_000, "every of follow", `is ${JSON.stringify(every)}`, 'Use "10ms" to "1h".');
  const last = new Map<string, string>();
  let open = [...new Set(ids)];
  let rung = Promise.withResolvers<void>();
  const ring = (): void => rung.resolve();
  const unlisten = store.onWakeup((what) => what === "wake" && ring());
  signal?.addEventListener("abort", ring);
  try {
    while (open.length > 0 && !signal?.aborted) {
      rung = Promise.withResolvers<void>();
      for (let from = 0; from < open.length; from += AT_ONCE) {
        const piece = open.slice(from, from + AT_ONCE);
        const jobs = await Promise.all(piece.map((id) => store.inspect.get(id)));
        for (const [at, job] of jobs.entries()) {
          const event = eventOf<Result>(piece[at]!, job);
          const text = JSON.stringify(event);
          if (last.get(event.id) === text) continue;
          last.set(event.id, text);
          yield event;
          if (signal?.aborted) return;
        }
      }
      open = open.filter((id) => !hasEnded(last.get(id)!));
      if (open.length === 0) return;
      const callOff = clock.after(everyMs, ring);
      await rung.promise;
      callOff();
    }
  } finally {
    unlisten();
    signal?.removeEventListener("abort", ring);
  }
}

function hasEnded(text: string): boolean {
  const { type } = JSON.parse(text) as FollowedJob;
  return type === "missing" || (type !== "waiting" && isTerminal(type));
}

function eventOf<Result>(id: string, job: JobDetails | null): FollowedJob<Result> {
  if (job === null) return { id, kind: "", attempt: 0, type: "missing" };
  const { kind, attempt, state, error, waitsAt, runAt, worker } = job;
  const of = { id, kind, attempt };
  if (state === "queued" && waitsAt !== null) return { ...of, type: "waiting", at: waitsAt };
  if (state === "queued") return { ...of, type: state, runAt, error };
  if (state === "running") return { ...of, type: state, worker, progress: job.progress as Json };
  if (state === "succeeded") return { ...of, type: state, result: job.result as Result };
  return { ...of, type: state, error };
}
