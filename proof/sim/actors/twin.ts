// A second producer, to which the same events come as to the first: what that sends with a dedupe key, this one sends too, at
// about the same moment and with an id of its own. It goes through the engine. Only one job may come of both.
import type { Engine } from "../../../src/engine/engine.ts";
import type { EnqueueOptions } from "../../../src/job/enqueue.ts";
import { whyStoreReplaced } from "../../../src/job/errors.ts";
import type { JobDraft } from "../../../src/job/job.ts";
import { throttleSettings } from "../../../src/job/limits.ts";
import { pause } from "../../../src/job/time.ts";
import type { SimProcess } from "../world/process.ts";

/** The two are at most this far apart, if nothing is slow. */
const APART_MS = 5;

/** What the twin has to send: it outlives its process, as the first one's drafts do. */
export class Echo {
  readonly left: JobDraft[] = [];
  readonly #heard = new Set<string>();
  #over = false;
  #wake = (): void => {};

  /** The first producer sends these now, perhaps not for the first time. */
  sent(drafts: readonly JobDraft[]): void {
    for (const draft of drafts) {
      if (draft.dedupeKey === null || this.#heard.has(draft.id)) continue;
      this.#heard.add(draft.id);
      this.left.push({ ...draft, id: `${draft.id}-twin` });
    }
    this.#wake();
  }

  /** The first producer has sent everything. */
  end(): void {
    this.#over = true;
    this.#wake();
  }

  get done(): boolean {
    return this.#over && this.left.length === 0;
  }

  /** Until there is something to send, and up to `APART_MS` longer; or until there is nothing more to come. */
  next(process: SimProcess, lateMs: number): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = () => {
        if (this.left.length > 0 || this.#over) process.main.after(lateMs, resolve);
      };
    });
  }
}

/** What gives such a draft again. */
function optionsOf({ id, priority, delayMs, dedupeKey, dedupe, keys = [] }: JobDraft): EnqueueOptions {
  const key = dedupeKey!;
  const plain = { id, priority };
  if (dedupe?.debounce) {
    const { waitMs, maxMs } = dedupe.debounce;
    return { ...plain, debounce: { key, wait: `${waitMs}ms`, ...(maxMs !== null && { max: `${maxMs}ms` }) } };
  }
  const delayed = { ...plain, delay: `${delayMs}ms` as const };
  const throttle = keys.map(({ limit }) => throttleSettings(limit)).find((one) => one !== null);
  if (throttle) return { ...delayed, throttle: { key, every: `${throttle.intervalMs!}ms` } };
  return { ...delayed, ...(dedupe ? { dedupe: { key, then: dedupe.then } } : { dedupeKey: key }) };
}

/** Sends what comes, each until it was answered; `acknowledged` hears the id that is in the store for a draft. */
export async function repeat(
  process: SimProcess,
  engine: Engine,
  echo: Echo,
  acknowledged: (draft: JobDraft, id: string) => void,
): Promise<void> {
  const random = process.random.fork("twin");
  const { clock } = process.main;
  const send = async (draft: JobDraft): Promise<void> => {
    const enqueued = await engine.operator.enqueueByName(draft.kind, JSON.parse(draft.input), optionsOf(draft));
    acknowledged(draft, enqueued.id);
    echo.left.splice(echo.left.indexOf(draft), 1);
  };
  while (!echo.done) {
    if (echo.left.length === 0) await echo.next(process, random.next() * APART_MS);
    const sent = await Promise.allSettled(echo.left.map(send));
    for (const one of sent) if (one.status === "rejected" && whyStoreReplaced(one.reason) !== null) throw one.reason;
    if (sent.some(({ status }) => status === "rejected")) await pause(clock, random.between(1, 200));
  }
}
