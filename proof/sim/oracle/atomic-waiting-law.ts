// The promises of waiting-law.ts as far as they can be read out of the records of the atomic store: no job sleeps on although what it waits for
// has come, each signal that was read is kept by one wait, and what a parent saw of other jobs is how they ended.
import { isTerminal } from "../../../src/job/job.ts";
import type { JobOutcome } from "../../../src/job/waits.ts";
import type { Data, JobRecord, WaitRecord } from "../stores/records.ts";
import { waitsAt } from "../stores/waits.ts";
import { demand } from "./violation.ts";

/** In the calm a job is claimed within this time after its wait has ended, if it is not a suspect that has to wait for others. */
const WOKEN_WITHIN_MS = 16_000;

export class AtomicWaitingLaw {
  readonly #asleepSince = new Map<string, number>();

  /** Only in the calm. */
  onLook(data: Data, now: number): void {
    for (const job of data.queued()) {
      const step = waitsAt(data, job);
      const hasEnded = step !== null && this.#hasEnded(data, job, data.wait(job.row)!);
      if (!hasEnded) {
        this.#asleepSince.delete(job.id);
        continue;
      }
      const since = this.#asleepSince.get(job.id) ?? now;
      this.#asleepSince.set(job.id, since);
      demand(now - since < WOKEN_WITHIN_MS, () => `sleeping job: ${job.id} still waits at ${step}, and that has ended`);
    }
  }

  #hasEnded(data: Data, { row }: JobRecord, { signal, awaited, dueAt }: WaitRecord): boolean {
    // What is due is claimed without being made ready before: suspects wait for their turn then.
    if (dueAt !== null && dueAt <= data.now) return false;
    if (signal !== null) return data.signals(row).some(({ name, readAt }) => name === signal && readAt === null);
    return awaited !== null && awaited.every((one) => isTerminal(data.job(one)?.state ?? "dead"));
  }

  audit(data: Data): void {
    for (const job of data.jobs()) {
      this.#readOnce(data, job);
      for (const { name, result } of data.steps(job.row))
        if (name.startsWith("run.wait")) this.#saw(data, job, result!);
    }
  }

  #readOnce(data: Data, { id, row }: JobRecord): void {
    const signals = data.signals(row);
    const ids = new Set(signals.map((one) => one.id));
    demand(ids.size === signals.length, () => `signal read twice: ${id} keeps a signal twice`);
    const read = signals.filter(({ readAt }) => readAt !== null).map(({ payload }) => payload);
    const kept = data
      .steps(row)
      .flatMap(({ name, result }) => (name.startsWith("run.signal") && result !== null ? [result] : []));
    demand(
      read.toSorted().join() === kept.toSorted().join(),
      () => `lost signal: ${id} read ${read.join() || "nothing"} and keeps ${kept.join() || "nothing"}`,
    );
  }

  /** Nothing retries a job by hand here, so it ends once. */
  #saw(data: Data, { id: waiter }: JobRecord, seen: string): void {
    for (const { id, state, result } of JSON.parse(seen) as readonly JobOutcome[]) {
      const job = data.jobById(id);
      if (state === "queued" || state === "running") continue;
      demand(
        job?.state === state && job.result === result,
        () => `${waiter} saw ${id} as ${state} with ${result}, and it is ${job?.state} with ${job?.result}`,
      );
    }
  }
}
