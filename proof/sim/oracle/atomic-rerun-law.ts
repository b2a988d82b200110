// The promises of rerun-law.ts on the atomic store: what was accepted of a dedupe key is seen by an attempt that began after it, with an input at
// least as new ("lost rerun"); a debounced job runs when it was quiet for long enough, and is not put off beyond its longest time.
//
// A failover takes events back. The producer sends them again, and the law counts from there.
import type { JobDraft } from "../../../src/job/job.ts";
import type { Data } from "../stores/records.ts";
import { demand } from "./violation.ts";
import type { Answer } from "./witness.ts";

/** All events of one dedupe key of a kind. */
interface Topic {
  readonly kind: string;
  readonly key: string;
  /** When each input was accepted last, as a number that grows with every event. */
  readonly orders: Map<string, number>;
  latest: number;
  /** All events up to this one were seen by an attempt. */
  seen: number;
  /** The latest events that one job stands for, if they are debounced. */
  calm: { readonly firstAt: number; lastAt: number; readonly waitMs: number; readonly maxMs: number } | null;
  /** The job of those events has begun its first attempt. Later attempts of it stand for no event: what comes meanwhile waits for its end. */
  isBegun: boolean;
  /** Events were lost: when the first of those that are left came is not known. */
  isBlind: boolean;
}

export class AtomicRerunLaw {
  readonly #topics = new Map<string, Topic>();
  #orders = 0;

  /** After every event with answers. */
  onAnswers(answers: readonly Answer[], data: Data): void {
    for (const answer of answers) {
      if (answer.of === "enqueue")
        answer.enqueued.forEach(({ created, became }, i) => {
          const draft = answer.drafts[i]!;
          if (draft.dedupe && (created || became !== undefined)) this.#accepted(draft, created, data.now);
        });
      if (answer.of === "turn")
        for (const { lease, input } of answer.answer.claimed) this.#began(lease.row, lease.fence, input, data);
    }
    for (const topic of this.#topics.values()) inTime(topic, data);
  }

  #accepted({ kind, dedupeKey, input, dedupe }: JobDraft, created: boolean, now: number): void {
    const name = `${kind}/${dedupeKey}`;
    const nothing = { orders: new Map(), latest: 0, seen: 0, calm: null, isBegun: false, isBlind: false };
    const topic: Topic = this.#topics.get(name) ?? { kind, key: dedupeKey!, ...nothing };
    this.#topics.set(name, topic);
    const isNew = created || topic.isBegun;
    topic.isBegun = false;
    topic.latest = ++this.#orders;
    topic.orders.set(input, topic.latest);
    if (created) topic.isBlind = false;
    const { waitMs = 0, maxMs = null } = dedupe?.debounce ?? {};
    if (maxMs === null || topic.isBlind) return;
    if (isNew) topic.calm = { firstAt: now, lastAt: now, waitMs, maxMs };
    else if (topic.calm !== null) topic.calm.lastAt = now;
  }

  #began(row: number, fence: number, input: string, data: Data): void {
    const job = data.job(row)!;
    const topic = job.dedupeKey === null ? undefined : this.#topics.get(`${job.kind}/${job.dedupeKey}`);
    if (!topic) return;
    const { calm } = topic;
    const quietAt = calm === null ? 0 : Math.min(calm.lastAt + calm.waitMs, calm.firstAt + calm.maxMs);
    demand(
      fence > 1 || data.now >= quietAt,
      () => `debounce: ${job.id} began ${quietAt - data.now} ms before it was quiet for long enough`,
    );
    // An event that is kept for the end of this job may be older than the loss.
    if (data.rerun(row) === null) topic.isBlind = false;
    if (fence === 1) topic.isBegun = true;
    topic.seen = Math.max(topic.seen, topic.orders.get(input) ?? 0);
  }

  lost(): void {
    for (const topic of this.#topics.values()) {
      topic.seen = topic.latest;
      topic.calm = null;
      topic.isBegun = true;
      topic.isBlind = true;
    }
  }

  /** When everything has ended. */
  audit(): void {
    for (const [name, { orders, latest, seen }] of this.#topics) {
      const [input] = [...orders].find(([, order]) => order === latest)!;
      demand(seen === latest, () => `lost rerun: ${input} of ${name} was accepted, and no attempt has seen it since`);
    }
  }
}

/** The job that holds the key and has not begun. */
function inTime({ kind, key, calm }: Topic, data: Data): void {
  const holder = calm === null ? null : data.keyHolder(kind, key);
  if (calm === null || holder === null || holder.fence > 0 || holder.runAt === null) return;
  const { id, runAt } = holder;
  const latestAt = calm.firstAt + calm.maxMs;
  demand(runAt <= latestAt, () => `debounce: ${id} is put off until ${runAt - latestAt} ms after its longest time`);
}
