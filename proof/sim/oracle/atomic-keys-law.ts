// The promises of keys-law.ts on the atomic store, by its answers and its records: no key has more jobs admitted or running than its limit, starts
// more than its rate ("too many starts"), starts anything while it is held off, breaks its strict order, or keeps a job waiting that it has room for
// ("stuck key"). Nothing changes a limit, retries a job by hand or moves the clock here, so these hold without exception.
//
// A failover takes back starts and hold-offs that were acknowledged. The law forgets the starts, because nothing says which of them were lost, and
// keeps a hold-off only as far as the records still have it.
import { isTerminal } from "../../../src/job/job.ts";
import type { Lease } from "../../../src/job/lease.ts";
import type { JobKey } from "../../../src/job/limits.ts";
import { type Data, isHeld, type JobRecord } from "../stores/records.ts";
import type { RunOf } from "../workloads/workload.ts";
import { type Bounds, boundsOf } from "./bounds.ts";
import { demand } from "./violation.ts";
import type { Answer } from "./witness.ts";

/** A start on time and one on the next whole ms are the same. */
const ROUNDING = 1e-6;

export class AtomicKeysLaw {
  /** When jobs of a key were claimed, since the latest loss; not those that were released before their handler began. */
  readonly #starts = new Map<number, { readonly at: number; readonly attempt: string }[]>();
  readonly #begun = new Set<string>();
  readonly #heldOffUntil = new Map<number, number>();
  /** The attempts that count against their keys, by their jobs: one that is admitted counts as the next. */
  readonly #counted = new Map<string, number>();
  /** In which order jobs became held. */
  readonly #heldSince = new Map<string, number>();
  #looks = 0;
  /** What the records say of rates may be older than what was seen. */
  #hasLost = false;

  /** After every event with answers. */
  onAnswers(answers: readonly Answer[], data: Data): void {
    this.#looks++;
    const now = data.now;
    const queued = data.queued();
    const running = data.running();
    const all = [...queued, ...running].filter(({ keys }) => keys.length > 0);
    for (const job of queued) this.#waits(job, now);
    for (const job of all) if (this.#isNew(job)) for (const key of job.keys) this.#mayRun(job, key, all, now);
    for (const id of this.#counted.keys()) if (!all.some((job) => job.id === id)) this.#counted.delete(id);
    for (const answer of answers) {
      if (answer.of === "write") this.#hearHoldOffs(answer, now);
      if (answer.of !== "turn") continue;
      this.#hearReleases(answer);
      for (const { lease } of answer.answer.claimed)
        for (const key of data.job(lease.row)?.keys ?? []) this.#mayStart(lease, key, now);
    }
    const last = answers.at(-1);
    if (last?.of === "turn" && last.answer.live) this.#leftNothing(all, data);
  }

  /** The latest scripts are lost. `data` is what is left. */
  lost(data: Data): void {
    this.#hasLost = true;
    this.#starts.clear();
    this.#counted.clear();
    this.#heldSince.clear();
    for (const [key, until] of this.#heldOffUntil)
      this.#heldOffUntil.set(key, Math.min(until, data.key(key).heldOffUntil));
    for (const job of [...data.queued(), ...data.running()]) {
      this.#isNew(job);
      this.#waits(job, data.now);
    }
  }

  #waits(job: JobRecord, now: number): void {
    if (!isHeld(job, now)) {
      if (!job.admitted) this.#heldSince.delete(job.id);
    } else if (!this.#heldSince.has(job.id)) this.#heldSince.set(job.id, this.#looks);
  }

  /** Whether the job counts against its keys since this event. */
  #isNew(job: JobRecord): boolean {
    const before = this.#counted.get(job.id);
    if (!isIn(job)) {
      this.#counted.delete(job.id);
      return false;
    }
    const attempt = job.state === "running" ? job.fence : job.fence + 1;
    this.#counted.set(job.id, attempt);
    return before !== attempt;
  }

  #mayRun(job: JobRecord, key: JobKey, all: readonly JobRecord[], now: number): void {
    const { running, strict } = boundsOf(key.limit);
    const own = all.filter((other) => has(other, key));
    const taken = own.filter(isIn);
    demand(
      taken.length <= running,
      () => `over limit: ${told(key)} allows ${running}, and ${taken.map(({ id }) => id).join(", ")} count`,
    );
    const heldOff = this.#heldOffUntil.get(key.id) ?? 0;
    demand(heldOff <= now, () => `${job.id} was admitted ${heldOff - now} ms before ${told(key)} may start anything`);
    if (strict) this.#inOrder(job, key, own, now);
  }

  #inOrder(job: JobRecord, key: JobKey, own: readonly JobRecord[], now: number): void {
    const isFirst = job.fence === (job.state === "running" ? 1 : 0);
    for (const other of own) {
      if (other.id === job.id) continue;
      demand(
        other.fence === 0,
        () => `strict order: ${job.id} was admitted while ${other.id}, which has begun, has not ended in ${told(key)}`,
      );
      // A job that another key has held keeps its turn, although one that was enqueued before it was not due until later.
      const hadItsTurn =
        job.keys.length > 1 &&
        (this.#heldSince.get(other.id) ?? 0) > (this.#heldSince.get(job.id) ?? Number.POSITIVE_INFINITY);
      demand(
        !isFirst || !isHeld(other, now) || other.row > job.row || hadItsTurn,
        () => `strict order: ${job.id} was admitted before ${other.id} in ${told(key)}`,
      );
    }
  }

  /** The handler of this attempt begins. */
  began({ id: jobId, fence: { epoch, number: fence } }: RunOf): void {
    this.#begun.add(attemptOf({ jobId, epoch, fence }));
  }

  /** What never began does not count as a start of its keys: the next one may come as if it had not been claimed. */
  #hearReleases({ settlements, answer }: Answer & { of: "turn" }): void {
    settlements.forEach(({ lease, change }, i) => {
      const attempt = attemptOf(lease);
      if (change.name !== "release" || answer.settled[i]?.is !== "applied" || this.#begun.has(attempt)) return;
      for (const [key, starts] of this.#starts)
        this.#starts.set(
          key,
          starts.filter((start) => start.attempt !== attempt),
        );
    });
  }

  #mayStart(lease: Lease, key: JobKey, now: number): void {
    const { intervalMs, burst } = boundsOf(key.limit);
    if (intervalMs === null) return;
    const starts = this.#starts.get(key.id) ?? [];
    this.#starts.set(key.id, starts);
    starts.push({ at: now, attempt: attemptOf(lease) });
    starts.forEach(({ at }, i) => {
      const count = starts.length - i;
      demand(
        count <= burst + (now - at) / intervalMs + ROUNDING,
        () => `too many starts: ${lease.jobId} is the ${count}th of ${told(key)} within ${now - at} ms`,
      );
    });
  }

  #hearHoldOffs({ writes, answers }: Answer & { of: "write" }, now: number): void {
    writes.forEach(({ write }, i) => {
      if (write.type !== "holdOff" || answers[i]?.is !== "applied") return;
      const { id } = write.key;
      this.#heldOffUntil.set(id, Math.max(this.#heldOffUntil.get(id) ?? 0, now + write.forMs));
    });
  }

  /** Every turn admits all that there is room for. */
  #leftNothing(all: readonly JobRecord[], data: Data): void {
    // A job of a fair kind also waits for its turn, and for a worker that has room for it.
    for (const job of all.filter(({ fair }) => fair === null))
      demand(
        !isHeld(job, data.now) || !job.keys.every((key) => this.#hasRoom(job, key, all, data)),
        () => `stuck key: a turn left ${job.id} held, and ${job.keys.map(told).join(" and ")} had room for it`,
      );
  }

  #hasRoom(job: JobRecord, key: JobKey, all: readonly JobRecord[], data: Data): boolean {
    const { now } = data;
    const bounds = boundsOf(key.limit);
    if ((this.#heldOffUntil.get(key.id) ?? 0) > now) return false;
    const others = all.filter((other) => other.id !== job.id && has(other, key));
    if (bounds.intervalMs !== null && !this.#hasStart(key, bounds, others, data)) return false;
    if (bounds.strict) {
      // One that waits at another door may have been first.
      const mayKeepPlace = (other: JobRecord): boolean => isHeld(other, now) && other.keys.length > 1;
      const isBehind = (other: JobRecord): boolean =>
        other.fence > 0 || mayKeepPlace(other) || (isHeld(other, now) && other.row < job.row);
      if (others.some(isBehind)) return false;
    }
    return others.filter(isIn).length < bounds.running;
  }

  #hasStart(key: JobKey, { intervalMs }: Bounds, others: readonly JobRecord[], data: Data): boolean {
    if (this.#hasLost && data.key(key.id).arrivalAt > data.now) return false;
    if ((this.#starts.get(key.id)?.at(-1)?.at ?? 0) + intervalMs! > data.now) return false;
    // A start is set aside for each that is admitted.
    return !others.some(({ admitted, state }) => admitted && state === "queued");
  }
}

function attemptOf({ jobId, epoch, fence }: Pick<Lease, "jobId" | "epoch" | "fence">): string {
  return `${jobId} ${epoch} ${fence}`;
}

/** Admitted or running. */
function isIn({ state, admitted }: JobRecord): boolean {
  return !isTerminal(state) && (state === "running" || admitted);
}

function has({ keys }: JobRecord, { id }: JobKey): boolean {
  return keys.some((key) => key.id === id);
}

function told({ limit, key }: JobKey): string {
  return `${limit} of ${key}`;
}
