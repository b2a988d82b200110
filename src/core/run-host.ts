// What a running handler asks of its worker: small writes under its fence, and the commit of its success with the user's own writes.
import type { Clock } from "./clock.ts";
import { assertForm, checkedEnqueue, CommitControl, type CommitForm } from "./commit.ts";
import { ErrorCode, OutliveError, toStoredError } from "./errors.ts";
import type { Emitter } from "./events.ts";
import type { Held } from "./held-jobs.ts";
import type { ClaimedJob, Enqueued } from "./job.ts";
import { encodeJson } from "./json.ts";
import type { Lease } from "./lease.ts";
import { type Attempt, type DraftMaker, type RunCall, type RunHost, staleError } from "./run.ts";
import type { Runner } from "./runner.ts";
import type { AttemptWrite, Stale, Store } from "./store.ts";
import * as transitions from "./transitions.ts";

export interface RunHostDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly events: Emitter;
  readonly runner: Runner;
  readonly draft: DraftMaker;
  /** Throws if the contract is not one of the program's own; left out: all are taken. */
  readonly assertKnown?: (contract: { readonly name: string }) => void;
  /** A step was written. */
  readonly stepped: (jobId: string) => void;
  /** The store has answered a commit: its slot is free. */
  readonly committed: (held: Held) => void;
}

export class WorkerRunHost implements RunHost {
  readonly draft: DraftMaker;
  readonly #deps: RunHostDeps;
  readonly #runner: Runner;

  constructor(deps: RunHostDeps) {
    this.#deps = deps;
    this.#runner = deps.runner;
    this.draft = deps.draft;
  }

  async write(
    lease: Lease,
    write: AttemptWrite,
  ): Promise<{ readonly stale: Stale | null; readonly enqueued: readonly Enqueued[] }> {
    const [answer] = await this.#deps.store.record([{ lease, write }]);
    if (answer?.is === "stale") {
      this.#runner.rejected(answer.stale);
      return { stale: answer.stale, enqueued: [] };
    }
    if (write.type === "step") this.#deps.stepped(lease.jobId);
    return { stale: null, enqueued: (answer?.is === "applied" ? answer.enqueued : undefined) ?? [] };
  }

  checkTrust(): void {
    this.#runner.checkTrust();
  }

  touched(run: Attempt): void {
    this.#runner.touched(run);
  }

  logged(job: ClaimedJob, message: string): void {
    this.#deps.events.emit("job.log", { jobId: job.lease.jobId, kind: job.kind, attempt: job.lease.fence, message });
  }

  callFailed({ lease, kind }: ClaimedJob, call: RunCall, attemptEnded: boolean, thrown: unknown): void {
    const { jobId, fence: attempt } = lease;
    const error = toStoredError(thrown);
    this.#deps.events.emit("call.failed", { jobId, kind, attempt, call, attemptEnded, error });
  }

  async commit(
    run: Attempt,
    form: CommitForm<unknown, "sync" | "async">,
    body: (tx: never) => unknown,
  ): Promise<unknown> {
    const { store, clock } = this.#deps;
    assertForm(form, store.name, `Job ${run.id} called commit`);
    const held = this.#runner.running(run);
    if (!held)
      throw new OutliveError(
        ErrorCode.stale,
        `Attempt ${run.attempt} of job ${run.id} is over.`,
        "Write nothing after the end of the attempt.",
        { jobId: run.id },
      );
    const change = transitions.succeed({ id: run.id, state: "running", counters: run.job.counters }, null);
    const encode = (value: unknown): string | null =>
      value === undefined ? null : encodeJson(value, `The result of job ${run.id}`);
    // From here on the transaction ends the attempt, one way or the other. What else would end it interrupts the transaction first.
    const control = new CommitControl(clock.mono());
    this.#runner.commits(held, control);
    const { answer, value } = await store
      .commit(
        { lease: run.job.lease, change },
        checkedEnqueue(body as (tx: unknown) => unknown, this.#deps.assertKnown ?? (() => {})),
        encode,
        control,
      )
      .catch((thrown: unknown) => {
        this.#runner.commitFailed(held);
        throw thrown;
      });
    held.commit = null;
    run.over = true;
    this.#deps.committed(held);
    if (answer.is === "stale") {
      this.#runner.rejected(answer.stale);
      run.abort("lease-lost", `job ${run.id} has a new owner`);
      throw staleError(answer.stale);
    }
    this.#runner.tell(held, change);
    return value;
  }
}
