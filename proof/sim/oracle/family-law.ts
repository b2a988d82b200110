// A cancel that includes the children of a job: those that have not begun are cancelled by the next turns, also those that the job enqueues until it
// ends, and none of them begins; those that have begun are left alone. A retry of the parent withdraws it.
import { type Model, type Moment, STATE } from "./model.ts";
import { demand } from "./violation.ts";
import type { JobRow } from "./watch.ts";

/** Turns of live workers after which a child must be cancelled. Each deals with one family before it claims, and few wait at a time. */
const TURNS = 20;

interface Child {
  readonly parent: string;
  /** How many turns there had been when it was enqueued; Infinity: it was retried by hand, and may run. */
  readonly since: number;
}

export class FamilyLaw {
  readonly #model: Model;
  readonly #children = new Map<string, Child>();
  /** Parents whose cancel includes their children, and how many turns there had been when it was accepted. */
  readonly #cancelled = new Map<string, number>();
  /** The same, whatever came later: after a restore a retry may be undone. */
  readonly #ever = new Set<string>();
  #restored = false;
  #turns = 0;

  constructor(model: Model) {
    this.#model = model;
  }

  /** Whether this job may be cancelled with its parent. */
  includes({ id, fence }: JobRow): boolean {
    const parent = this.#children.get(id)?.parent;
    if (parent === undefined || fence > 0) return false;
    return this.#cancelled.has(parent) || (this.#restored && this.#ever.has(parent));
  }

  onChange(was: JobRow | null, is: JobRow): void {
    if (was?.state !== STATE.queued || is.state !== STATE.running || was.fence > 0) return;
    const turns = this.#turnsPassed(is.id);
    demand(turns < TURNS, () => `job ${is.id} began, ${turns} turns after the cancel of its parent included it`);
  }

  onMoment({ answers }: Moment): void {
    for (const answer of answers) {
      if (answer.of === "turn" && answer.answer.live) this.#turns++;
      else if (answer.of === "write") this.#enqueued(answer);
      else if (answer.of === "cancel" && answer.children && ["applied", "requested"].includes(answer.answer.is)) {
        this.#cancelled.set(answer.job, this.#turns);
        this.#ever.add(answer.job);
      } else if (answer.of === "retry" && answer.answer.is === "applied") {
        this.#cancelled.delete(answer.job);
        const child = this.#children.get(answer.job);
        if (child) this.#children.set(answer.job, { ...child, since: Number.POSITIVE_INFINITY });
      }
    }
    if (this.#cancelled.size > 0) for (const id of this.#children.keys()) this.#left(id);
  }

  #enqueued({ writes, answers }: Extract<Moment["answers"][number], { of: "write" }>): void {
    writes.forEach(({ lease }, i) => {
      const answer = answers[i];
      if (answer?.is !== "applied") return;
      for (const { id, created } of answer.enqueued ?? [])
        if (created) this.#children.set(id, { parent: lease.jobId, since: this.#turns });
    });
  }

  #left(id: string): void {
    const job = this.#model.jobsById.get(id);
    if (job?.state !== STATE.queued || job.fence > 0) return;
    const turns = this.#turnsPassed(id);
    demand(
      turns < TURNS,
      () => `job ${id} is not cancelled, ${turns} turns after the cancel of its parent included it`,
    );
  }

  /** Since the cancel of its parent included it; 0: it does not. */
  #turnsPassed(id: string): number {
    const child = this.#children.get(id);
    const at = child && this.#cancelled.get(child.parent);
    return at === undefined ? 0 : this.#turns - Math.max(at, child!.since);
  }

  /** The rows are those of an earlier time: what was accepted since may be gone, and what was withdrawn may be back. */
  wentBack(): void {
    this.#restored = true;
    this.#cancelled.clear();
  }
}
