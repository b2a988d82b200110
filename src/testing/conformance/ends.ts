// Every way in which a job can end, and everything that follows from it. A new way is a row, a new consequence is a column, and each cell holds:
// what follows from the end of a job does not depend on what ended it.
import assert from "node:assert/strict";
import type { ClaimedJob, JobState, KindSettings } from "../../job/job.ts";
import { jobKey, type LimitSettings } from "../../job/limits.ts";
import * as transitions from "../../job/transitions.ts";
import { decideCrash } from "../../recovery/recover.ts";
import type { Settlement, Verdict } from "../../stores/port.ts";
import {
  type Draft,
  draft,
  type Fixture,
  GRACE_MS,
  type TestWorker,
  kind,
  LEASE_MS,
  NO_ROOM,
  roomFor,
  SETTLE,
  type Specify,
  TIMEOUT_MS,
} from "./fixture.ts";

type Change = transitions.Change;

// ---- the columns

/** One job whose end is observed, and what must be so after it. */
interface Consequence {
  /** The job that ends. */
  readonly target: Draft;
  /** What stands by before it ends, with the worker that runs the target. */
  readonly prepare?: (
    fixture: Fixture,
    running: { readonly worker: TestWorker; readonly job: ClaimedJob },
  ) => Promise<unknown>;
  /** Whether it has happened. `claimed`: the ids of what a worker found to run afterwards. */
  readonly holds: (fixture: Fixture, claimed: ReadonlySet<string>) => boolean | Promise<boolean>;
}

const TENANT: LimitSettings = { name: "tenant", running: 1, intervalMs: null, burst: 1, strict: false };
const ACCOUNT: LimitSettings = { name: "account", running: null, intervalMs: null, burst: 1, strict: true };
const RERUN = { dedupeKey: "again", dedupe: { then: "rerun" } } as const;

export const CONSEQUENCES: Readonly<Record<string, Consequence>> = {
  "the slot of its key is free": {
    target: { id: "slot", priority: 5, keys: [jobKey("tenant", "acme")] },
    prepare: (fixture) => fixture.enqueue({ id: "slot/next", kind: "target", keys: [jobKey("tenant", "acme")] }),
    holds: (_, claimed) => claimed.has("slot/next"),
  },
  "the next in the strict order of its key may start": {
    target: { id: "order", keys: [jobKey("account", "acme")] },
    prepare: (fixture) => fixture.enqueue({ id: "order/next", kind: "target", keys: [jobKey("account", "acme")] }),
    holds: (_, claimed) => claimed.has("order/next"),
  },
  "its parent wakes": {
    // The parent enqueues it; `family` prepares that.
    target: { id: "child" },
    holds: (_, claimed) => claimed.has("parent"),
  },
  "a job that waits for it and is not its parent wakes": {
    target: { id: "awaited" },
    prepare: async (fixture) => {
      await fixture.enqueue("waiter");
      const other = await fixture.worker("w-waiter");
      await other.settle(waiting(await other.next(roomFor(1, ["mail"])), "awaited"));
      await quiet(other);
    },
    holds: (_, claimed) => claimed.has("waiter"),
  },
  "an event for its dedupe key runs": {
    target: { id: "rerun", ...RERUN },
    prepare: async (fixture) =>
      assert.deepEqual(await fixture.enqueue({ id: "rerun/event", kind: "target", ...RERUN }), [
        { id: "rerun", created: false, became: "rerun" },
      ]),
    holds: (_, claimed) => claimed.has("rerun/event"),
  },
  "its dedupe key is free": {
    target: { id: "dedupe", dedupeKey: "key" },
    prepare: async (fixture) => assert.equal(await takesKey(fixture), false),
    holds: (fixture) => takesKey(fixture),
  },
  "the jobs that follow are there": {
    target: { id: "follow" },
    holds: async (fixture) => (await fixture.states("follow/next"))[0] !== "missing",
  },
  "it takes no signal any more": {
    target: { id: "signalled" },
    prepare: async (fixture) => assert.deepEqual(await send(fixture, "before"), { is: "kept" }),
    holds: async (fixture) => ["ended", "missing"].includes((await send(fixture, "after")).is),
  },
  "its own children are kept no longer than others": {
    target: { id: "family" },
    prepare: async (fixture, { worker, job }) => {
      await worker.record(job, { type: "enqueue", drafts: [draft("family/child")] });
      await fixture.store.operate.cancel("family/child", "operator");
    },
    async holds(fixture) {
      await fixture.clock.advance(HOUR_MS);
      await fixture.enqueue("newest");
      await purge(fixture, HOUR_MS / 2);
      return (await fixture.states("family/child"))[0] === "missing";
    },
  },
};

const HOUR_MS = 3_600_000;
const TARGETS = Object.values(CONSEQUENCES).map(({ target }) => target.id);

function takesKey(fixture: Fixture): Promise<boolean> {
  return fixture
    .enqueue({ id: "dedupe/next", kind: "target", dedupeKey: "key", delayMs: HOUR_MS })
    .then(([enqueued]) => enqueued!.created);
}

function send(fixture: Fixture, id: string) {
  return fixture.store.operate.signal({ job: "signalled", name: "go", payload: "1", id });
}

function purge(fixture: Fixture, olderThanMs: number) {
  return fixture.store.purge({ finishedOlderThanMs: olderThanMs, incidentsOlderThanMs: HOUR_MS * 9, limit: 1_000 });
}

// ---- the rows

interface Ending {
  /** The change that ends it; of several, the last. */
  readonly by: transitions.ChangeName;
  readonly state: JobState;
  /** The settings of the kind, where the way needs some. */
  readonly kind?: Partial<KindSettings>;
  /** Why nothing can follow: what ends it is not a decision of the engine's that could name a job. Omitted: jobs follow. */
  readonly noFollow?: string;
  /** Ends all of `jobs`, which `worker` runs. Returns false if this store has no such way, or the ids of what it claimed meanwhile. */
  readonly end: (fixture: Fixture, worker: TestWorker, jobs: readonly ClaimedJob[]) => Promise<unknown>;
}

const BY_HAND = "what people do has no follow-up jobs";

export const ENDINGS: Readonly<Record<string, Ending>> = {
  success: { by: "succeed", state: "succeeded", end: (_, worker, jobs) => settleAll(worker, jobs, SETTLE.succeed) },
  "success with a result": {
    by: "succeed",
    state: "succeeded",
    end: (_, worker, jobs) => settleAll(worker, jobs, (job) => SETTLE.succeed(job, '"done"')),
  },
  "a commit": {
    by: "succeed",
    state: "succeeded",
    async end(fixture, _, jobs) {
      const user = fixture.user();
      if (user === null) return false;
      for (const job of jobs) {
        const body = user.writing(job.lease.jobId, () => null) as never;
        await fixture.store.transactions!.commit(followed(SETTLE.succeed(job)), body, () => null);
      }
      return true;
    },
  },
  "a terminal error": {
    by: "fail",
    state: "dead",
    end: (_, worker, jobs) => settleAll(worker, jobs, SETTLE.failForGood),
  },
  "its last error": {
    by: "fail",
    state: "dead",
    end: (_, worker, jobs) => settleAll(worker, jobs, (job) => SETTLE.fail(job, 0, kind("target", ONCE))),
  },
  "a refused input": { by: "refuse", state: "dead", end: (_, worker, jobs) => settleAll(worker, jobs, SETTLE.refuse) },
  "its last timeout, by its worker": {
    by: "timeOut",
    state: "dead",
    end: (_, worker, jobs) =>
      settleAll(worker, jobs, (job) => ({
        lease: job.lease,
        change: transitions.timeOut(view(job), kind("target", ONCE), 0),
      })),
  },
  "its deadline, by another process": {
    by: "timeOut",
    state: "dead",
    kind: { limits: { errors: 3, timeouts: 1, crashes: 3 } },
    async end(fixture) {
      await fixture.clock.advance(TIMEOUT_MS + GRACE_MS + 1);
      const { jobs } = await fixture.store.heldBy({ overdue: { marginMs: 0 }, limit: 100 });
      const verdicts = jobs.map((job): Verdict => {
        const change = withFollow(job.id, transitions.timeOut(job, job.kind, 0));
        return { job, alone: false, decision: "fail", change, error: null };
      });
      await fixture.store.takeBack({ verdicts, of: null, last: true });
    },
  },
  "the death of its worker": {
    by: "crash",
    state: "dead",
    kind: { onCrash: "fail" },
    end: (fixture, worker) => fixture.recoverAll(worker, { decide: deciding(decideCrash) }),
  },
  "a quarantine after the death of its worker": {
    by: "crash",
    state: "quarantined",
    end: (fixture, worker) =>
      fixture.recoverAll(worker, {
        decide: deciding((job) => {
          const suspect = { ...job, counters: { ...job.counters, crashes: 1 } };
          return transitions.crash(suspect, kind("target", ONCE), { suspectsAtDeath: 1 });
        }),
      }),
  },
  "a loss of contact": {
    by: "lose",
    state: "dead",
    kind: { onCrash: "fail" },
    end: (fixture, worker) => fixture.recoverAll(worker, { death: lost(fixture), decide: deciding(decideCrash) }),
  },
  "a loss that turns out to be a death": {
    by: "countLoss",
    state: "quarantined",
    kind: { limits: { errors: 3, timeouts: 3, crashes: 1 } },
    async end(fixture, worker) {
      const { incident } = await fixture.recoverAll(worker, { death: lost(fixture) });
      await fixture.store.losses.resolve(worker.id, "died");
      const jobs = await fixture.store.losses.jobs(incident!, 100);
      const verdicts = jobs.map((job) => {
        const { decision, change } = transitions.countLoss(job, job.kind, true, "died");
        return { job, decision, change: withFollow(job.id, change) };
      });
      await fixture.store.losses.judge(incident!, verdicts);
    },
  },
  "a damaged input that a claim finds": {
    by: "quarantine",
    state: "quarantined",
    noFollow: "the store itself decides that nothing of it can be trusted",
    async end(fixture, worker, jobs) {
      const damage = fixture.damage();
      if (damage === null) return false;
      await worker.settle(...jobs.map((job) => SETTLE.release(job)));
      for (const { lease } of jobs) await damage(lease.jobId, "input");
      return take(worker, ["target"]);
    },
  },
  "a cancel before it runs again": {
    by: "cancel",
    state: "cancelled",
    noFollow: BY_HAND,
    async end(fixture, worker, jobs) {
      await worker.settle(...jobs.map((job) => SETTLE.release(job)));
      for (const { lease } of jobs) await fixture.store.operate.cancel(lease.jobId, "operator");
    },
  },
  "a cancel, and its purge before any worker has acted on it": {
    by: "cancel",
    state: "cancelled",
    noFollow: BY_HAND,
    async end(fixture, worker, jobs) {
      await worker.settle(...jobs.map((job) => SETTLE.release(job)));
      for (const { lease } of jobs) await fixture.store.operate.cancel(lease.jobId, "operator");
      await fixture.clock.advance(10);
      await fixture.enqueue("newest/1");
      await purge(fixture, 5);
      assert.deepEqual(await fixture.states("follow"), ["missing"]);
    },
  },
  "a cancel while it runs": {
    by: "endCancelled",
    state: "cancelled",
    end: (fixture, worker, jobs) => cancelled(fixture, jobs, () => settleAll(worker, jobs, SETTLE.endCancelled)),
  },
  "a cancel, and an error": {
    by: "fail",
    state: "cancelled",
    end: (fixture, worker, jobs) => cancelled(fixture, jobs, () => settleAll(worker, jobs, (job) => SETTLE.fail(job))),
  },
  "a cancel, and a release by its worker": {
    by: "release",
    state: "cancelled",
    end: (fixture, worker, jobs) =>
      cancelled(fixture, jobs, () => settleAll(worker, jobs, (job) => SETTLE.release(job))),
  },
  "a cancel, and a wait": {
    by: "wait",
    state: "cancelled",
    end: (fixture, worker, jobs) =>
      cancelled(fixture, jobs, () => settleAll(worker, jobs, (job) => waiting(job, "nobody"))),
  },
  "a cancel, and the death of its worker": {
    by: "crash",
    state: "cancelled",
    end: (fixture, worker, jobs) =>
      cancelled(fixture, jobs, () => fixture.recoverAll(worker, { decide: deciding(decideCrash) })),
  },
  "a cancel, and a loss of contact": {
    by: "lose",
    state: "cancelled",
    end: (fixture, worker, jobs) =>
      cancelled(fixture, jobs, () =>
        fixture.recoverAll(worker, { death: lost(fixture), decide: deciding(decideCrash) }),
      ),
  },
  "a reclaim while no program of the user's runs": {
    by: "lose",
    state: "dead",
    kind: { onCrash: "fail" },
    noFollow: "no program is there that could name a job",
    async end(fixture, worker) {
      await fixture.reclaim(worker);
      await fixture.clock.advance(LEASE_MS + 1_000);
      await fixture.reclaim(worker);
    },
  },
};

const ONCE = { limits: { errors: 1, timeouts: 1, crashes: 1 } } as const;

// ---- the table

export function specifyEnds(specify: Specify): void {
  for (const [how, ending] of Object.entries(ENDINGS))
    specify(`whatever follows from the end of a job follows when it ends by ${how}`, async (fixture) => {
      await fixture.declare(kind("target", { ...ending.kind, keyed: [TENANT, ACCOUNT] }));
      const worker = await fixture.worker("w-target");
      const jobs = await targets(fixture, worker);
      const probe = await fixture.worker("w-probe");
      assert.deepEqual([...(await take(probe, ["mail", "target"]))], [], "nothing has happened before the end");
      const claimedBefore = await ending.end(fixture, worker, jobs);
      if (claimedBefore === false) return;
      await assertEnded(fixture, ending);
      const next = await fixture.worker("w-next");
      const before = claimedBefore instanceof Set ? (claimedBefore as Set<string>) : [];
      const claimed = new Set([...before, ...(await take(next, ["mail", "target"]))]);
      const missing: string[] = [];
      for (const [what, { target, holds }] of Object.entries(CONSEQUENCES)) {
        const isThere = await holds(fixture, claimed);
        const isWanted = target.id !== "follow" || ending.noFollow === undefined;
        if (isThere !== isWanted) missing.push(what);
      }
      assert.deepEqual(missing, [], `after ${how} this is not so`);
    });
}

/** The target of each column, run by one worker, with what stands by for its end. */
async function targets(fixture: Fixture, worker: TestWorker): Promise<readonly ClaimedJob[]> {
  await fixture.enqueue({ id: "parent", priority: 9 });
  const above = await fixture.worker("w-parent");
  const parent = await above.next(roomFor(1, ["mail"]));
  for (const { target } of Object.values(CONSEQUENCES)) {
    const one = draft({ kind: "target", ...target });
    if (target.id === "child") await above.record(parent, { type: "enqueue", drafts: [one] });
    else await fixture.enqueue(one);
  }
  await above.settle(waiting(parent, "child"));
  const jobs: ClaimedJob[] = [];
  for (let turns = 0; turns < 20 && jobs.length < TARGETS.length; turns++)
    jobs.push(...(await worker.claim(roomFor(TARGETS.length - jobs.length, ["target"]))));
  assert.deepEqual(jobs.map(({ lease }) => lease.jobId).toSorted(), TARGETS.toSorted());
  for (const { target, prepare } of Object.values(CONSEQUENCES))
    await prepare?.(fixture, { worker, job: jobs.find(({ lease }) => lease.jobId === target.id)! });
  return jobs;
}

/** Each target has ended, once, in the way that the row names. A purged one is not there any more. */
async function assertEnded(fixture: Fixture, { by, state }: Ending): Promise<void> {
  for (const id of TARGETS) {
    const job = await fixture.store.inspect.get(id);
    if (job === null) continue;
    const event = by === "succeed" ? undefined : by;
    const last = job.history.findLast(({ to }) => to === state)?.event;
    assert.deepEqual([id, job.state, last], [id, state, event]);
  }
}

function withFollow(id: string, change: Change): Change {
  if (id !== "follow") return change;
  const follow = [draft("follow/next")];
  const { ifCancelled } = change;
  return { ...change, follow, ...(ifCancelled && { ifCancelled: { ...ifCancelled, follow } }) };
}

function followed({ lease, change }: Settlement): Settlement {
  return { lease, change: withFollow(lease.jobId, change) };
}

function settleAll(worker: TestWorker, jobs: readonly ClaimedJob[], settle: (job: ClaimedJob) => Settlement) {
  return worker.settle(...jobs.map((job) => followed(settle(job))));
}

async function cancelled(fixture: Fixture, jobs: readonly ClaimedJob[], then: () => Promise<unknown>): Promise<void> {
  for (const { lease } of jobs) await fixture.store.operate.cancel(lease.jobId, "operator");
  await then();
}

function deciding(decide: typeof decideCrash): typeof decideCrash {
  return (job, condemned) => {
    const { decision, change } = decide(job, condemned);
    return { decision, change: withFollow(job.id, change) };
  };
}

function lost(fixture: Fixture) {
  return { how: "lost", lastSeenAliveAt: null, detectedAt: fixture.clock.now(), evidence: null } as const;
}

function view({ lease, counters }: ClaimedJob): transitions.JobView {
  return { id: lease.jobId, state: "running", counters };
}

function waiting(job: ClaimedJob, ...jobs: readonly string[]): Settlement {
  const wait = { step: "run.wait#1", forMs: null, until: { jobs } } as const;
  return { lease: job.lease, change: transitions.wait(view(job), wait) };
}

async function quiet(worker: TestWorker): Promise<void> {
  for (let turns = 0; turns < 100; turns++) if ((await worker.turn([], NO_ROOM)).nextDueInMs !== 0) return;
  assert.fail(`worker ${worker.id} always has more to do`);
}

/** The ids of what a worker claims until there is nothing more to act on. */
async function take(worker: TestWorker, kinds: readonly string[]): Promise<ReadonlySet<string>> {
  const claimed = new Set<string>();
  for (let turns = 0; turns < 100; turns++) {
    const answer = await worker.turn([], roomFor(20, kinds));
    for (const { lease } of answer.claimed) claimed.add(lease.jobId);
    if (answer.nextDueInMs !== 0 && answer.claimed.length === 0 && (answer.corrupt ?? []).length === 0) return claimed;
  }
  assert.fail(`worker ${worker.id} always has more to do`);
}
