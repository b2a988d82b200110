// Made-up jobs, kinds, workers and stores for the tests of core. Each maker takes only what the test is about.
import type { Emitter, EngineEvent, EventName, Events } from "../../src/job/events.ts";
import { type ClaimedJob, type Counters, type KindSettings, NO_COUNTERS } from "../../src/job/job.ts";
import type { Lease } from "../../src/job/lease.ts";
import type { JobView } from "../../src/job/transitions.ts";
import type { WorkerRow } from "../../src/stores/liveness.ts";
import type { SomeVerbs } from "../../src/stores/observed.ts";
import type { BeatAnswer, Condemned, CondemnRequest, Store, TurnAnswer } from "../../src/stores/port.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import type { WorkerContext } from "../../src/worker/life.ts";
import { fixedRandom } from "./fixed-random.ts";

export function aKind(given: Partial<KindSettings> = {}): KindSettings {
  return {
    name: "mail",
    timeoutMs: 60_000,
    maxRuntimeMs: null,
    graceMs: 5_000,
    limits: { errors: 3, timeouts: 2, crashes: 3 },
    backoff: { type: "exponential", baseMs: 1_000, maxMs: 3_600_000, jitter: 0 },
    onCrash: "retry",
    ...given,
  };
}

export function counted(given: Partial<Counters> = {}): Counters {
  return { ...NO_COUNTERS, ...given };
}

export function aView(given: Partial<JobView> = {}): JobView {
  return { id: "job-1", state: "running", counters: NO_COUNTERS, ...given };
}

export function aLease(given: Partial<Lease> = {}): Lease {
  return { kind: "mail", jobId: "job-1", row: 1, worker: "w1", epoch: 7, fence: 1, ...given };
}

export function aClaim(given: Partial<ClaimedJob> & { readonly id?: string } = {}): ClaimedJob {
  const { id, ...rest } = given;
  return {
    lease: aLease(id === undefined ? {} : { jobId: id }),
    kind: "mail",
    input: "null",
    counters: NO_COUNTERS,
    deadlineInMs: 60_000,
    together: null,
    lastOutcome: null,
    steps: [],
    ...rest,
  };
}

export function aWorkerRow(given: Partial<WorkerRow> = {}): WorkerRow {
  return {
    id: "w2",
    host: "here",
    bootId: "boot",
    namespace: null,
    startTicks: null,
    predecessor: null,
    pid: 42,
    version: "0.1.0",
    leaseMs: 90_000,
    concurrency: 10,
    kinds: ["mail"],
    lock: { name: "w2.lock", identity: "1" },
    state: "live",
    startedAt: 0,
    heartbeatAt: 0,
    beats: 1,
    loopLagMs: 0,
    heldCount: 0,
    lastWord: null,
    ...given,
  };
}

export function aBeatAnswer(given: Partial<BeatAnswer> = {}): BeatAnswer {
  return {
    live: true,
    now: 0,
    held: { count: 0, digest: 0 },
    overdueMs: null,
    overdueJobId: null,
    schemaVersion: 1,
    ...given,
  };
}

/** What `turn` returns: everything that was settled is applied, nothing else happens. */
export function aTurn(settledCount: number, given: Partial<TurnAnswer> = {}): TurnAnswer {
  return {
    settled: Array.from({ length: settledCount }, () => ({ is: "applied" as const })),
    claimed: [],
    live: true,
    cancels: [],
    nextDueInMs: null,
    ...given,
  };
}

/** A store that knows only what the test gives it; anything else that is asked of it fails the test. */
export function fakeStore(given: SomeVerbs): Store {
  const parts = Object.fromEntries(
    ["inspect", "operate", "losses", "upkeep", "transactions"].map((part) => [
      part,
      expecting(`${part}.`, given[part as "inspect"] ?? {}),
    ]),
  );
  // A store need not have batches, collections or schedules, and this one has none unless they are given.
  const batches = given.batches && expecting("batches.", given.batches);
  const collections = given.collections && expecting("collections.", given.collections);
  const schedules = given.schedules && expecting("schedules.", given.schedules);
  return expecting("", {
    name: "fake",
    purgesAtOnce: undefined,
    ...given,
    ...parts,
    batches,
    collections,
    schedules,
  }) as Store;
}

/** What a test did not give throws when it is called. */
function expecting(prefix: string, given: object): object {
  const unexpected = (name: string) => () => {
    throw new Error(`the test did not expect store.${prefix}${name}`);
  };
  return new Proxy(given, {
    get: (target, name) => (name in target ? Reflect.get(target, name) : unexpected(String(name))),
  });
}

/** What the objects of worker w1 share. It trusts its lease forever, and what a test does not give may not be asked. */
export function aContext(given: Partial<WorkerContext> = {}): WorkerContext {
  return {
    worker: "w1",
    store: fakeStore({}),
    clock: virtualClock(),
    random: fixedRandom(),
    events: new Recorder(),
    kinds: new Map(),
    draft: () => {
      throw new Error("the test did not expect a draft");
    },
    trust: { untilMono: Number.POSITIVE_INFINITY, inContact: true },
    ...given,
  };
}

/** Hears every event but those that a test must ask for by name: what happens to every job. */
export class Recorder implements Emitter {
  readonly events: EngineEvent[] = [];
  readonly #asked: ReadonlySet<EventName>;

  constructor(...asked: EventName[]) {
    this.#asked = new Set(asked);
  }

  emit<Name extends EventName>(name: Name, event: Events[Name]): void {
    this.events.push({ name, ...event } as unknown as EngineEvent);
  }

  has(name: EventName): boolean {
    return this.#asked.has(name) || (name !== "job.claimed" && name !== "attempt.ended");
  }

  names(): string[] {
    return this.events.map((event) => event.name);
  }

  of<Name extends EventName>(name: Name): (Events[Name] & { readonly name: Name })[] {
    return this.events.filter((event) => event.name === name) as never;
  }
}

/** A promise and the handles to end it, for answers that a test holds back. */
export function held<T>(): PromiseWithResolvers<T> {
  return Promise.withResolvers<T>();
}

/** What `condemn` returns of a worker that held one job, a suspect. */
export function condemned(request: CondemnRequest): Condemned {
  const { worker, death, incident } = request;
  return { worker: worker.id, incident, opened: true, how: death.how, heldAtDeath: 1, suspectsAtDeath: 1, cursor: 0 };
}
