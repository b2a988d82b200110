// A worker as the user holds it: one life after the other until it is stopped. Losing a life (the store said that it was taken
// for dead) starts the next one under a new id; only an unfit process ends with an error.
import { createHash } from "node:crypto";
import type { MessageSuspects } from "../collections/messages.ts";
import type { AnyContract, RunnableKind } from "../job/contract.ts";
import { invalidInput } from "../job/enqueue.ts";
import { ErrorCode, OutliveError, toStoredError, whyStoreReplaced } from "../job/errors.ts";
import type { ClaimedJob, CrashAction, JobDraft } from "../job/job.ts";
import type { Json } from "../job/json.ts";
import { type Clock, type Duration, pause } from "../job/time.ts";
import { newWorkerId, type ProcessIdentity } from "../platform/identity.ts";
import type { KindCounts } from "../stores/port.ts";
import { type EndOfLife, WorkerLife, type WorkerLifeDeps, type WorkerLifeOptions } from "../worker/life.ts";
import { graceOf, settingsWithDefaults, type WorkOptions } from "./options.ts";

/** A running worker. */
export interface WorkerHandle {
  /** The worker's id. It changes if the worker was declared dead and started again. */
  readonly id: string;
  /** How many jobs it holds now. */
  readonly held: number;
  /** Resolves when the worker has stopped; rejects if it had to give up. */
  readonly stopped: Promise<void>;
  /** Stops claiming, lets running jobs finish within `grace`, releases the rest at no cost, and ends. */
  stop(options?: {
    /** How long it waits for running jobs. Default: that of its start. */
    readonly grace?: Duration;
  }): Promise<void>;
}

/** What all lives of a worker have in common. */
type LifeOptions = Omit<WorkerLifeOptions, "id" | "predecessor">;

export class WorkerHost implements WorkerHandle {
  readonly stopped: Promise<void>;
  readonly #deps: WorkerLifeDeps;
  readonly #options: LifeOptions;
  readonly #identity: ProcessIdentity;
  #life: WorkerLife;
  /** Lives that were taken from us, whose handlers may still run. */
  readonly #former: WorkerLife[] = [];
  #stopping: Promise<void> | undefined;
  readonly #wanted = new AbortController();

  static async start(deps: WorkerLifeDeps, options: LifeOptions, identity: ProcessIdentity): Promise<WorkerHost> {
    const id = newWorkerId(identity, deps.random);
    const life = await WorkerLife.begin(deps, { ...options, id, predecessor: null });
    return new WorkerHost(deps, options, identity, life);
  }

  private constructor(deps: WorkerLifeDeps, options: LifeOptions, identity: ProcessIdentity, life: WorkerLife) {
    this.#deps = deps;
    this.#options = options;
    this.#identity = identity;
    this.#life = life;
    this.stopped = this.#live();
    this.stopped.catch(() => {}); // callers that await it see the rejection; without one it must not be an unhandled rejection
  }

  get id(): string {
    return this.#life.id;
  }

  get held(): number {
    return this.#life.loop.heldCount;
  }

  get unsettled(): number {
    return this.#life.loop.unsettledCount;
  }

  /** How often to read what schedules are due. */
  get schedulesMs(): number {
    return this.#life.loop.pace.schedulesMs;
  }

  get lastBeat(): WorkerLife["lastBeat"] {
    return this.#life.lastBeat;
  }

  /** For what consumes messages in this process. */
  readonly suspects: MessageSuspects = {
    areHeld: () => this.#life.loop.holdsSuspects,
    apart: (alone, work, signal) => this.#life.loop.apart(alone, work, signal),
  };

  heldJobs(): readonly ClaimedJob[] {
    return this.#life.loop.heldJobs();
  }

  stop(options: { readonly grace?: Duration } = {}): Promise<void> {
    const graceMs = graceOf(options);
    this.#wanted.abort();
    for (const life of this.#former.splice(0)) life.loop.close();
    this.#stopping ??= this.#life.stop(graceMs);
    return this.#stopping.then(() => this.stopped);
  }

  async #live(): Promise<void> {
    for (;;) {
      const end = await this.#life.ended;
      if (end.why === "unfit") throw unfit(end);
      if (end.why === "stopped") return;
      const next = await this.#nextLifeAfter(this.#life);
      if (!next) return;
      // Stopped just as the next life began: `stop` knew only the one before.
      if (this.#wanted.signal.aborted) return next.stop(0);
      this.#former.push(this.#life);
      this.#life = next;
    }
  }

  async #nextLifeAfter(former: WorkerLife): Promise<WorkerLife | null> {
    try {
      return await this.#nextLife();
    } finally {
      await former.unlock();
    }
  }

  /** The store may be unreachable now: asks again until it responds or the worker is stopped. */
  async #nextLife(): Promise<WorkerLife | null> {
    const { clock, events, random } = this.#deps;
    for (let retryInMs = 100; !this.#wanted.signal.aborted; retryInMs = Math.min(5_000, retryInMs * 2)) {
      try {
        const id = newWorkerId(this.#identity, random);
        const life = await WorkerLife.begin(this.#deps, { ...this.#options, id, predecessor: this.#life.id });
        if (!this.#wanted.signal.aborted) return life;
        await life.stop(0);
      } catch (thrown) {
        if (whyStoreReplaced(thrown) !== null) throw thrown;
        events.emit("store.failed", { doing: "starting a worker again", error: toStoredError(thrown), retryInMs });
        await pause(clock, retryInMs, this.#wanted.signal);
      }
    }
    return null;
  }
}

function unfit({ reason, detail }: EndOfLife & { why: "unfit" }): OutliveError {
  switch (reason) {
    case "schema-newer":
      return new OutliveError(
        ErrorCode.schemaNewer,
        `This worker is too old for the store: ${detail}.`,
        "It stopped claiming and released what it held. Upgrade the outlive package in this program.",
      );
    case "foreign-worker":
      return new OutliveError(
        ErrorCode.foreignWorker,
        `Two machines use one SQLite file: ${detail}.`,
        "It stopped and released what it held. A SQLite file belongs to one machine; use PostgreSQL for several.",
      );
    case "store-replaced":
      return new OutliveError(
        ErrorCode.storeReplaced,
        `The store is not the one that this worker registered with: ${detail}.`,
        "It stopped at once, and nothing that it writes is accepted. If a backup was restored, start this program again; if not, check the store's address.",
        { why: detail },
      );
  }
}

/** What a process of `outlive work` has: all that runs the program's code, or the requests, which run none of it but `send`. */
export type Share = "handlers" | "requests";

export interface StartedShare {
  readonly worker: WorkerHandle;
  readonly kinds: readonly string[] | null;
  readonly sent: readonly string[];
}

/** The share of these kinds; all of them if the program has only one of the two. */
export function shareOf(
  share: Share | null,
  kinds: ReadonlyMap<string, RunnableKind>,
  requests: ReadonlySet<string>,
): ReadonlyMap<string, RunnableKind> {
  const sent = [...kinds].filter(([kind]) => requests.has(kind));
  if (share === null || sent.length === 0 || sent.length === kinds.size) return kinds;
  return new Map(share === "requests" ? sent : [...kinds].filter(([kind]) => !requests.has(kind)));
}

// From contracts to what a worker runs: handlers, parsers, settings with the engine's defaults; and the ids of children.

/** The kinds that a worker of this process runs: those of `only`, or all that have a handler. */
export function runnableKinds(
  contracts: ReadonlyMap<string, AnyContract>,
  only: WorkOptions["only"],
  defaults: { readonly onCrash: CrashAction; readonly maxCrashes: number },
  /** What is run for each kind of batch and of request, by its name. */
  ofBatches: ReadonlyMap<string, ReadonlyMap<string, RunnableKind>> = new Map(),
): ReadonlyMap<string, RunnableKind> {
  const runnable = new Map<string, RunnableKind>();
  const text = (only as readonly unknown[] | undefined)?.find((one) => typeof one === "string");
  if (text !== undefined)
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The option only contains the text ${JSON.stringify(text)}, but it takes what job() returned.`,
      "Pass the jobs themselves: only: [mail].",
      { only },
    );
  for (const name of only?.map((kind) => kind.name) ?? [...contracts.keys()]) {
    const contract = contracts.get(name);
    if (!contract)
      throw new OutliveError(
        ErrorCode.kindUnknown,
        `The option only names ${JSON.stringify(name)}, which is not one of the jobs of this engine.`,
        `Pass the job to open() in \`jobs\` as well. It has ${[...contracts.keys()].join(", ") || "none"}.`,
        { kind: name },
      );
    const ofBatch = ofBatches.get(name);
    if (ofBatch && ofBatch.size > 0) {
      for (const [kind, one] of ofBatch) runnable.set(kind, one);
      continue;
    }
    // A callback of a request that came with it.
    if (runnable.has(name)) continue;
    const { handler, schema, output, keysOf, backoff } = contract;
    if (!handler) {
      if (only && !runnable.has(name))
        throw new OutliveError(
          ErrorCode.kindUnknown,
          `The kind ${name} has no handler in this process.`,
          "Import the module that calls `.handle` before you start the worker.",
          { kind: name },
        );
      continue;
    }
    runnable.set(name, {
      settings: settingsWithDefaults(contract, defaults),
      parse: schema && parser(name, schema),
      handler,
      checkResult: output && resultChecker(output),
      keysOf,
      delayMs: backoff,
    });
  }
  if (runnable.size === 0)
    throw new OutliveError(
      ErrorCode.kindUnknown,
      "This worker has nothing to run: none of the jobs has a handler here.",
      "Pass `jobs` to open() and import the modules that call `.handle`.",
    );
  return runnable;
}

/** The id of a child: a hash of its parent and its content, the same in every attempt. */
export function childId(seed: string): string {
  return `c${createHash("sha256").update(seed).digest("hex").slice(0, 31)}`;
}

/** What tells children of one parent apart. */
export function contentOf({ kind, input, dedupeKey }: JobDraft): string {
  return JSON.stringify([kind, input, dedupeKey]);
}

/** The stored input through the schema, as the handler sees it. */
function parser(kind: string, schema: NonNullable<AnyContract["schema"]>): (input: Json) => unknown {
  return (input) => {
    const unwrap = (result: { issues?: readonly { message: string }[] | undefined; value?: unknown }): unknown => {
      if (result.issues && result.issues.length > 0) throw invalidInput(kind, result.issues);
      return result.value;
    };
    const result = schema["~standard"].validate(input);
    return result instanceof Promise ? result.then(unwrap) : unwrap(result);
  };
}

/** What the handler returned through the kind's output schema, as it is kept. */
function resultChecker(schema: NonNullable<AnyContract["output"]>): NonNullable<RunnableKind["checkResult"]> {
  return (value, jobId) => {
    const unwrap = (result: { issues?: readonly { message: string }[] | undefined; value?: unknown }): unknown => {
      if (!result.issues || result.issues.length === 0) return result.value;
      throw new OutliveError(
        ErrorCode.notJson,
        `The result of job ${jobId} does not fit the output of its kind: ${result.issues.map(({ message }) => message).join("; ")}.`,
        "Return what `output` describes, or change it.",
        { jobId },
      );
    };
    const result = schema["~standard"].validate(value);
    return result instanceof Promise ? result.then(unwrap) : unwrap(result);
  };
}

// The end of `engine.runUntilIdle`: when nothing is left that its worker would run.

export interface IdleDeps {
  readonly client: { counts(): Promise<readonly KindCounts[]> };
  readonly clock: Clock;
  /** The kinds that are run here. */
  readonly kinds: ReadonlySet<string>;
  /** Whether a batch has ended but for the check that finds it, which enqueues what follows. */
  readonly endsBatch: () => Promise<boolean>;
}

/** Resolves with the counts once nothing of these kinds runs or is ready, and no batch is about to end. */
export async function untilIdle({ client, clock, kinds, endsBatch }: IdleDeps): Promise<readonly KindCounts[]> {
  for (;;) {
    const counts = await client.counts();
    const left = counts
      .filter(({ kind }) => kinds.has(kind))
      .some(({ paused, ready, held, running }) => running > 0 || (ready + held > 0 && !paused));
    if (!left && !(await endsBatch())) return counts;
    await pause(clock, 1);
  }
}
