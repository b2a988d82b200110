// Promises 3 and 5 from the other side: what the store answered is what the rows say. "Applied" changed this very attempt,
// once; "repeated" was returned for this very settlement because it had been accepted before, and of no other; "stale" of everything
// else that changed nothing, and that was recorded.
import type { Lease } from "../../../src/job/lease.ts";
import type { Settlement, WriteAnswer } from "../../../src/stores/port.ts";
import { attemptOf, type Model, type Moment, STATE } from "./model.ts";
import { demand } from "./violation.ts";
import type { HistoryRow, JobRow, StepRow } from "./watch.ts";

export class AnswerLaw {
  readonly #model: Model;
  readonly #isFormer: (worker: string) => boolean;
  /** By attempt: the change that was accepted as its end, and when. */
  readonly #accepted = new Map<string, { readonly change: string; readonly at: number }>();
  /** As `#accepted`, of attempts whose end is not in the store any more since a restore. */
  readonly #takenBack = new Map<string, string>();

  /** `isFormer`: the row of this worker came back with a backup, so it owns nothing. */
  constructor(model: Model, isFormer: (worker: string) => boolean) {
    this.#model = model;
    this.#isFormer = isFormer;
  }

  /** After the model has learnt the moment. Returns how many writes were refused. */
  onMoment(
    moment: Moment,
    changes: readonly { readonly was: JobRow | null; readonly is: JobRow | null }[],
    history: readonly HistoryRow[],
    steps: readonly { readonly was: StepRow | null; readonly is: StepRow | null }[],
  ): number {
    const endedNow = new Set(
      changes.flatMap(({ was, is }) =>
        was?.state === STATE.running && is?.state !== STATE.running ? [attemptOf(was)] : [],
      ),
    );
    const appliedNow = new Set<string>();
    let refused = 0;
    /** A restore may have taken the whole job back, and its history with it. */
    let untraceable = 0;
    const refuse = ({ jobId, row }: Lease): void => {
      refused++;
      if (this.#model.jobsById.get(jobId)?.seq !== row) untraceable++;
    };
    const settled = ({ lease, change }: Settlement, answer: WriteAnswer | undefined, tried: string): void => {
      const attempt = keyOf(lease);
      const before = this.#accepted.get(attempt)?.change;
      const told = (): string => `"${tried}" of attempt ${attempt} by ${lease.worker} was answered ${answer?.is}`;
      demand(answer !== undefined, () => `${told()}: no answer`);
      if (answer.is === "applied") {
        demand(endedNow.has(attempt), () => `${told()}, but no such attempt ended`);
        demand(!appliedNow.has(attempt), () => `${told()} twice`);
        demand(
          !this.#takenBack.has(attempt),
          () => `${told()}, and "${this.#takenBack.get(attempt)}" had been accepted before the restore`,
        );
        appliedNow.add(attempt);
        this.#accepted.set(attempt, { change: change.name, at: moment.now });
      } else if (answer.is === "repeated") {
        demand(before === change.name, () => `${told()}, but what was accepted before is ${before ?? "nothing"}`);
      } else {
        refuse(lease);
        demand(!this.#owns(lease), () => `${told()}, but it owns the job`);
        demand(before !== change.name, () => `${told()}, but it had been accepted before`);
      }
    };
    for (const answer of moment.answers) {
      if (answer.of === "turn")
        answer.settlements.forEach((one, i) => settled(one, answer.answer.settled[i], one.change.name));
      else if (answer.of === "commit") settled(answer.settlement, answer.answer, "commit");
      else if (answer.of === "write")
        answer.writes.forEach(({ lease, write }, i) => {
          const told = (): string => `${write.type} of attempt ${keyOf(lease)} by ${lease.worker}`;
          const stale = answer.answers[i]?.is === "stale";
          if (stale) refuse(lease);
          demand(!stale || !this.#owns(lease), () => `${told()} was refused, but it owns the job`);
          demand(
            stale || this.#owns(lease) || endedNow.has(keyOf(lease)),
            () => `${told()} was accepted, but it does not own the job`,
          );
        });
    }
    const recorded = history.filter(({ event }) => event === "write.rejected").length;
    demand(
      recorded === refused - untraceable,
      () => `${refused - untraceable} writes were refused and ${recorded} were recorded`,
    );
    for (const { was, is } of steps) this.#step(was, is, endedNow);
    return refused;
  }

  /** What was accepted since the last sync is gone with the power, and would be accepted again. */
  powerLost(syncedAt: number): void {
    for (const [attempt, { at }] of this.#accepted) if (at >= syncedAt) this.#accepted.delete(attempt);
  }

  /** What was accepted since the backup was taken is gone, and must not be accepted again: its fence is not issued any more. */
  restored(takenAt: number): void {
    for (const [attempt, { at, change }] of this.#accepted)
      if (at >= takenAt) {
        this.#accepted.delete(attempt);
        this.#takenBack.set(attempt, change);
      }
  }

  #step(was: StepRow | null, is: StepRow | null, endedNow: ReadonlySet<string>): void {
    demand(was === null && is !== null, () => `step ${(was ?? is)!.name} of job ${(was ?? is)!.job} was changed`);
    const job = this.#model.jobs.get(is.job);
    demand(
      job !== undefined && job.fence === is.fence && (job.state === STATE.running || endedNow.has(attemptOf(job))),
      () => `step ${is.name} of job ${job?.id} was written with fence ${is.fence}; it is ${job?.fence}`,
    );
  }

  #owns(lease: Lease): boolean {
    const row = this.#model.jobsById.get(lease.jobId);
    return (
      !this.#isFormer(lease.worker) &&
      row?.state === STATE.running &&
      row.epoch === lease.epoch &&
      row.fence === lease.fence &&
      this.#model.workersById.get(lease.worker)?.row.seq === row.worker
    );
  }
}

function keyOf(lease: Lease): string {
  return `${lease.jobId} ${lease.epoch} ${lease.fence}`;
}
