// Promises about an enqueue whose dedupe key an unfinished job may hold. What was accepted is seen by an attempt that began after it, with an
// input at least as new ("lost rerun"). A debounced job runs when it was quiet for long enough, and is never put off beyond its longest time.
import type { JobDraft } from "../../../src/job/job.ts";
import { isTerminal, type Model, type Moment, STATE } from "./model.ts";
import { demand } from "./violation.ts";
import type { JobRow } from "./watch.ts";

/** All events of one dedupe key of a kind. */
interface Topic {
  /** When each input was accepted last, as a number that grows with every event. */
  readonly orders: Map<string, number>;
  latest: number;
  /** All events up to this one were seen by an attempt. */
  seen: number;
  /** The latest events that one job stands for, if they are debounced, by the store's clock. */
  calm: { readonly firstAt: number; lastAt: number; readonly waitMs: number; readonly maxMs: number } | null;
  /** The job of those events has begun its first attempt. Later attempts of it stand for no event: what comes meanwhile waits for its end. */
  isBegun: boolean;
  /** The clock has jumped, or the rows went back: when the first of the events came is not known. */
  isBlind: boolean;
}

export class RerunLaw {
  readonly #model: Model;
  readonly #topics = new Map<string, Topic>();
  /** A person who queues a job again does not wait for anything to be quiet. */
  readonly #retried = new Set<number>();
  #orders = 0;
  #offset: number | null = null;

  constructor(model: Model) {
    this.#model = model;
  }

  /** After every event. A clock that jumps makes a series of events longer or shorter. */
  onTime(now: number, wall: number): void {
    const offset = Math.round(wall - now);
    if (this.#offset !== null && Math.abs(offset - this.#offset) > 1)
      for (const topic of this.#topics.values()) forgetCalm(topic);
    this.#offset = offset;
  }

  /** After the model has learnt the moment. */
  onMoment(moment: Moment): void {
    const wall = Math.floor(moment.wall);
    for (const answer of moment.answers)
      if (answer.of === "enqueue")
        answer.enqueued.forEach(({ id, created, became }, i) => {
          const draft = answer.drafts[i]!;
          if (draft.dedupe && (created || became !== undefined)) this.#accepted(draft, id, created, wall);
        });
    if (this.#topics.size === 0) return;
    for (const seen of moment.seen) if (seen.subject === "job" && seen.is) this.#changed(seen.was, seen.is, wall);
  }

  #accepted({ kind, dedupeKey, input, dedupe }: JobDraft, id: string, created: boolean, wall: number): void {
    const name = topicOf(kind, dedupeKey!);
    const fresh = { orders: new Map(), latest: 0, seen: 0, calm: null, isBegun: false, isBlind: false };
    const topic: Topic = this.#topics.get(name) ?? fresh;
    this.#topics.set(name, topic);
    const isNew = created || topic.isBegun;
    topic.isBegun = false;
    topic.latest = ++this.#orders;
    topic.orders.set(input, topic.latest);
    const { waitMs = 0, maxMs = null } = dedupe?.debounce ?? {};
    if (created) topic.isBlind = false;
    if (maxMs === null || topic.isBlind) return;
    if (isNew) topic.calm = { firstAt: wall, lastAt: wall, waitMs, maxMs };
    else if (topic.calm !== null) topic.calm.lastAt = wall;
    this.#inTime(this.#model.jobsById.get(id)!, topic);
  }

  #changed(was: JobRow | null, is: JobRow, wall: number): void {
    if (was && isTerminal(was.state) && is.state === STATE.queued) this.#retried.add(is.seq);
    const topic = is.key === null ? undefined : this.#topics.get(topicOf(is.kind, is.key));
    if (!topic) return;
    if (was === null) this.#inTime(is, topic);
    const begins = was?.state === STATE.queued && is.state === STATE.running;
    if (begins && is.fence === 1 && !this.#retried.has(is.seq)) this.#isQuiet(is, topic, wall);
    // A person did not want it: that is an answer, too.
    const isDropped = is.state === STATE.cancelled && is.fence === 0;
    if (begins) topic.isBlind = false;
    if (begins && is.fence === 1) topic.isBegun = true;
    if (begins || isDropped) topic.seen = Math.max(topic.seen, topic.orders.get(is.input ?? "") ?? 0);
  }

  #isQuiet({ id }: JobRow, { calm }: Topic, wall: number): void {
    const quietAt = calm === null ? 0 : Math.min(calm.lastAt + calm.waitMs, calm.firstAt + calm.maxMs);
    demand(wall >= quietAt, () => `debounce: ${id} began ${quietAt - wall} ms before it was quiet for long enough`);
  }

  #inTime({ id, fence, runAt }: JobRow, { calm }: Topic): void {
    if (calm === null || fence > 0 || runAt === null) return;
    const latestAt = calm.firstAt + calm.maxMs;
    demand(runAt <= latestAt, () => `debounce: ${id} is put off until ${runAt - latestAt} ms after its longest time`);
  }

  /** The rows are older ones: what was accepted since then may be gone. */
  wentBack(): void {
    for (const topic of this.#topics.values()) {
      topic.seen = topic.latest;
      forgetCalm(topic);
    }
  }

  /** When everything has ended. */
  audit(): void {
    for (const [name, { orders, latest, seen }] of this.#topics) {
      const [lost] = [...orders].find(([, order]) => order === latest)!;
      demand(seen === latest, () => `lost rerun: ${lost} of ${name} was accepted, and no attempt has seen it since`);
    }
  }
}

function forgetCalm(topic: Topic): void {
  topic.calm = null;
  topic.isBegun = true;
  topic.isBlind = true;
}

function topicOf(kind: string, key: string): string {
  return `${kind}/${key}`;
}
