// Promises 1 and 5 about the small writes of an attempt: what was accepted is there, whole, and nothing else is. A child that was
// answered is in the store, a line of the log is a row under its own fence, a heartbeat moved the deadline, a new step set the
// crashes back.
import type { Lease } from "../../../src/job/lease.ts";
import type { AttemptWrite } from "../../../src/stores/port.ts";
import type { KindFacts } from "../workloads/workload.ts";
import type { Model, Moment } from "./model.ts";
import { demand } from "./violation.ts";

export class WriteLaw {
  readonly #model: Model;
  readonly #facts: (kind: string) => KindFacts;

  constructor(model: Model, facts: (kind: string) => KindFacts) {
    this.#model = model;
    this.#facts = facts;
  }

  /** After the model has learnt the moment. */
  onMoment(moment: Moment): void {
    const lines: string[] = [];
    for (const answer of moment.answers) {
      if (answer.of !== "write") continue;
      answer.writes.forEach(({ lease, write }, i) => {
        const told = answer.answers[i];
        if (told?.is !== "applied") return;
        if (write.type === "enqueue") this.#children(lease, write, told.enqueued ?? []);
        if (write.type === "heartbeat") this.#moved(lease, moment.wall);
        if (write.type === "log") lines.push(`job ${lease.row}, fence ${lease.fence}: ${write.message}`);
      });
    }
    this.#logged(moment, lines);
    this.#setBack(moment);
  }

  #children(lease: Lease, { drafts }: AttemptWrite & { type: "enqueue" }, enqueued: readonly { id: string }[]): void {
    demand(
      enqueued.length === drafts.length,
      () => `${lease.jobId} enqueued ${drafts.length} children and was answered ${enqueued.length}`,
    );
    for (const { id } of enqueued)
      demand(this.#model.jobsById.has(id), () => `the child ${id} of ${lease.jobId} was acknowledged and is not there`);
  }

  #moved({ jobId, kind }: Lease, wall: number): void {
    const leftMs = (this.#model.jobsById.get(jobId)?.deadline ?? Infinity) - Math.floor(wall);
    const { timeoutMs } = this.#facts(kind);
    demand(
      leftMs >= timeoutMs,
      () => `job ${jobId} said that it lives, and has ${leftMs} ms left of its ${timeoutMs} ms`,
    );
  }

  /** The new rows of all logs are the accepted ones, each once. */
  #logged({ seen }: Moment, accepted: readonly string[]): void {
    const missing = [...accepted];
    for (const one of seen) {
      if (one.subject !== "log") continue;
      const { was, is } = one;
      demand(was === null && is !== null, () => `a line of the log of job ${(was ?? is)!.job} was changed`);
      const line = `job ${is.job}, fence ${is.fence}: ${is.message}`;
      const at = missing.indexOf(line);
      demand(at >= 0, () => `the log has a line that was not accepted: ${line}`);
      missing.splice(at, 1);
    }
    demand(missing.length === 0, () => `the log lacks a line that was accepted: ${missing[0]}`);
  }

  #setBack({ seen }: Moment): void {
    for (const one of seen) {
      if (one.subject !== "step" || one.was || !one.is) continue;
      const job = this.#model.jobs.get(one.is.job);
      demand(
        job?.crashes === 0 && job.blamed === 0,
        () => `job ${job?.id} finished the step ${one.is?.name} and still has ${job?.crashes} crashes`,
      );
    }
  }
}
