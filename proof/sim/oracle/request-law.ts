// What people and programs got as an answer: an enqueue that resolved is in the store (promise 1), under its own id or that of the
// unfinished job with its dedupe key, of which there is one; and a cancel that was accepted is not forgotten.
import type { JobDraft } from "../../../src/job/job.ts";
import { isTerminal, type Model, type Moment, STATE } from "./model.ts";
import { demand } from "./violation.ts";
import type { JobRow } from "./watch.ts";

/** The slowest call that was under way (two ways), a lease until a dead owner is found, and a moment. */
const HEARD_WITHIN_MS = 16_000;

/** What an enqueue asked for, as far as it decides which job may be the answer. */
export type Asked = Pick<JobDraft, "id" | "kind" | "dedupeKey">;

export class RequestLaw {
  readonly #model: Model;
  /** Jobs whose cancel was accepted while they ran, and when. */
  readonly #cancelling = new Map<string, number>();
  /** Jobs whose cancel was asked for, and accepted, since they were last queued by hand. */
  readonly #asked = new Set<string>();
  readonly #everAsked = new Set<string>();
  /** What was acknowledged to a producer, and when. */
  readonly acknowledged = new Map<string, number>();
  readonly #fresh: { readonly draft: Asked; readonly id: string }[] = [];

  /** Whether a job may be cancelled because the cancel of its parent includes it. */
  readonly #withParent: (job: JobRow) => boolean;

  constructor(model: Model, withParent: (job: JobRow) => boolean = () => false) {
    this.#model = model;
    this.#withParent = withParent;
  }

  onChange(was: JobRow | null, is: JobRow): void {
    if (was && isTerminal(was.state) && is.state === STATE.queued) this.#asked.delete(is.id);
    const begins = was?.state === STATE.queued && is.state === STATE.running;
    demand(!begins || !this.#cancelling.has(is.id), () => `job ${is.id} began again after its cancel was accepted`);
    if (isTerminal(is.state)) this.#cancelling.delete(is.id);
    if (is.key === null || isTerminal(is.state) || (was && !isTerminal(was.state))) return;
    for (const other of this.#model.jobs.values())
      demand(
        other.seq === is.seq || other.key !== is.key || other.kind !== is.kind || isTerminal(other.state),
        () => `jobs ${other.id} and ${is.id} are both unfinished with the dedupe key ${is.key}`,
      );
  }

  onMoment(moment: Moment, changes: readonly { readonly was: JobRow | null; readonly is: JobRow | null }[]): void {
    const wasUnfinished = (id: string): boolean =>
      !isTerminal(this.#model.jobsById.get(id)?.state ?? STATE.succeeded) ||
      changes.some(({ was }) => was?.id === id && !isTerminal(was.state));
    for (const { draft, id } of this.#fresh.splice(0)) {
      demand(this.#model.jobsById.has(id), () => `${id} was acknowledged and is not in the store`);
      this.#standsFor(draft, id);
    }
    for (const answer of moment.answers) {
      if (answer.of === "enqueue") {
        answer.enqueued.forEach(({ id, created }, i) => {
          const draft = answer.drafts[i]!;
          demand(this.#model.jobsById.has(id), () => `enqueue answered ${id}, which is not in the store`);
          this.#standsFor(draft, id);
          demand(
            id === draft.id || (!created && wasUnfinished(id)),
            () => `enqueue of ${draft.id} was answered with ${id}, which ${created ? "is another" : "had ended"}`,
          );
        });
      } else if (answer.of === "cancel") {
        if (answer.answer.is === "applied" || answer.answer.is === "requested") this.#ask(answer.job);
        if (answer.answer.is === "requested" && !isTerminal(this.#model.jobsById.get(answer.job)?.state ?? 0))
          this.#cancelling.set(answer.job, moment.now);
      }
    }
    for (const change of changes) this.#cancelled(change);
  }

  /** When nothing is lost or slow any more, a running job hears soon of its cancel. `calmAt`: since when. */
  onCalm(now: number, calmAt: number): void {
    if (now - calmAt < HEARD_WITHIN_MS) return;
    for (const [id, at] of this.#cancelling)
      demand(
        now - at < HEARD_WITHIN_MS || this.#model.jobsById.get(id)?.state !== STATE.running,
        () => `job ${id} runs on, ${Math.round(now - at)} ms after its cancel was accepted`,
      );
  }

  #ask(id: string): void {
    this.#asked.add(id);
    this.#everAsked.add(id);
  }

  /** No job is cancelled without a request. */
  #cancelled({ was, is }: { readonly was: JobRow | null; readonly is: JobRow | null }): void {
    demand(
      is?.state !== STATE.cancelled || was?.state === STATE.cancelled || this.#asked.has(is.id) || this.#withParent(is),
      () => `job ${is?.id} was cancelled without a request`,
    );
  }

  /** An enqueue is answered with its own job, or with one that has its key; without a key there is no other. */
  #standsFor(draft: Asked, id: string): void {
    const row = this.#model.jobsById.get(id);
    const has = (key: string | null): string => (key === null ? "no key" : `the key ${key}`);
    demand(
      id === draft.id || (draft.dedupeKey !== null && row?.key === draft.dedupeKey && row.kind === draft.kind),
      () =>
        `enqueue of ${draft.id} (${draft.kind}, ${has(draft.dedupeKey)}) was answered with ${id} (${row?.kind}, ${has(row?.key ?? null)})`,
    );
  }

  /** The producer's promise resolved: `id` is in the store for its draft. */
  acknowledge(draft: Asked, id: string, now: number): void {
    this.acknowledged.set(id, now);
    this.#fresh.push({ draft, id });
  }

  /** The rows are those of `asOf`: what was acknowledged since then may be gone, nothing else. Returns how many are. */
  wentBack(asOf: number): number {
    this.#fresh.length = 0;
    this.#cancelling.clear();
    // The retry after a cancel may be among what is gone, and then the cancel counts again.
    for (const id of this.#everAsked) this.#asked.add(id);
    let lost = 0;
    for (const [id, at] of this.acknowledged) {
      if (this.#model.jobsById.has(id)) continue;
      demand(at >= asOf, () => `${id} was acknowledged at ${at} and is not in the rows of ${asOf}`);
      this.acknowledged.delete(id);
      lost++;
    }
    return lost;
  }
}
