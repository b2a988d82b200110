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
export type FollowedJob<Result = Json> = { readonly id: string; readonly kind: string; readonly attempt: number } & (
  | { readonly type: "queued"; readonly runAt: number | null; readonly error: StoredError | null }
  /** It waits at a step such as "run.sleep#1", without a slot. */
  | { readonly type: "waiting"; readonly at: string }
  | { readonly type: "running"; readonly worker: string | null; readonly progress: Json }
  | { readonly type: "succeeded"; readonly result: Result }
  | { readonly type: "dead" | "cancelled" | "quarantined"; readonly error: StoredError | null }
  /** It is not in the store: it was removed, or its retention has passed. Its kind is empty. */
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
