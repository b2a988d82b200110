// Holds what `why` says for each cause, with a fixed clock and a store that is only asked.
import assert from "node:assert/strict";
import { test } from "node:test";
import { explain, type Explanation } from "../../src/engine/why.ts";
import { type JobDetails, NO_COUNTERS } from "../../src/job/job.ts";
import type { KeyState } from "../../src/job/limits.ts";
import type { WorkerRow } from "../../src/stores/liveness.ts";
import type { KindCounts, LockHolder, Store, WorkerSuspects } from "../../src/stores/port.ts";

const NOW = Date.parse("2026-11-15T12:00:00Z");

function aJob(given: Partial<JobDetails> = {}): JobDetails {
  return {
    id: "job-1",
    kind: "mail",
    state: "queued",
    priority: 0,
    dedupeKey: null,
    createdAt: NOW - 60_000,
    runAt: null,
    startedAt: null,
    deadlineAt: null,
    finishedAt: null,
    worker: null,
    epoch: 1,
    attempt: 0,
    counters: NO_COUNTERS,
    together: 0,
    lastOutcome: null,
    error: null,
    cancelRequested: false,
    parent: null,
    waitsAt: null,
    keys: [],
    heldBy: null,
    waitsForResolution: false,
    input: {},
    result: null,
    progress: null,
    steps: [],
    history: [],
    log: [],
    corrupt: [],
    ...given,
  };
}

function aWorker(given: Partial<WorkerRow> = {}): WorkerRow {
  return {
    id: "here-1-a",
    host: "here",
    bootId: "boot",
    namespace: null,
    startTicks: null,
    predecessor: null,
    pid: 1,
    version: "0.1.0",
    leaseMs: 90_000,
    concurrency: 10,
    kinds: ["mail"],
    lock: { name: null, identity: null },
    state: "live",
    startedAt: NOW - 600_000,
    heartbeatAt: NOW - 4_000,
    beats: 20,
    loopLagMs: 2,
    heldCount: 10,
    lastWord: null,
    ...given,
  };
}

const KIND: KindCounts = {
  kind: "mail",
  paused: false,
  ready: 8,
  oldestReadyMs: 60_000,
  delayed: 0,
  held: 0,
  running: 10,
  succeeded: 0,
  dead: 0,
  cancelled: 0,
  quarantined: 0,
};

function aKey({ limits, ...given }: NonNullable<Fixture["key"]>): KeyState {
  return {
    limit: "tenant",
    key: "acme",
    applies: { running: null, intervalMs: null, burst: 1, strict: false, ...limits },
    own: {},
    taken: 0,
    held: 3,
    paused: null,
    heldOffUntil: null,
    ...given,
  };
}

const HELD: Partial<JobDetails> = { heldBy: { limit: "tenant", key: "acme" } };

interface Fixture {
  readonly job?: Partial<JobDetails>;
  /** The job a moment later. Omitted: as before. */
  readonly later?: Partial<JobDetails>;
  readonly kind?: Partial<KindCounts>;
  readonly workers?: readonly WorkerRow[];
  readonly ahead?: number | null;
  readonly suspects?: readonly WorkerSuspects[];
  readonly writers?: readonly (LockHolder | null)[];
  /** Ids of workers that are proved dead. */
  readonly dead?: readonly string[];
  readonly failure?: string;
  /** How the key stands that holds it. */
  readonly key?: Partial<KeyState> & { readonly limits?: Partial<KeyState["applies"]> };
  /** Ids of children that have not ended, the newest first. */
  readonly children?: { readonly queued: readonly string[]; readonly running: readonly string[] };
}

async function said(fixture: Fixture): Promise<readonly [Explanation["because"], string, string]> {
  const writers = [...(fixture.writers ?? [null])];
  const jobs = [fixture.job, fixture.later ?? fixture.job];
  const inspect = {
    get: async () => aJob(jobs.length > 1 ? jobs.shift() : jobs[0]),
    list: async ({ state }) => {
      const ids = fixture.children?.[state as "queued" | "running"] ?? [];
      return { jobs: ids.map((id) => aJob({ id })), next: null };
    },
    counts: async () => [{ ...KIND, ...fixture.kind }],
    ahead: async () => (fixture.ahead === undefined ? 7 : fixture.ahead),
    ...(fixture.key && { keys: async () => [aKey(fixture.key!)] }),
    suspects: async () => fixture.suspects ?? [],
    writer: async () => (writers.length > 1 ? writers.shift()! : writers[0]!),
    health: async () =>
      fixture.failure === undefined
        ? { ok: true, summary: ["a store"], detail: {} }
        : { ok: false, summary: ["a store"], detail: { lastFailure: fixture.failure } },
  } as Partial<Store["inspect"]> as Store["inspect"];
  const store = {
    inspect,
    workers: async () => fixture.workers ?? [aWorker()],
  } as Partial<Store> as Store;
  const death = { how: "gone", lastSeenAliveAt: null, detectedAt: NOW, evidence: null } as const;
  const deaths = async () => (fixture.dead ?? []).map((id) => ({ worker: aWorker({ id }), death }));
  const deps = { store, deaths, now: () => NOW, pause: async () => {} };
  const { because, text, next } = (await explain(deps, "job-1"))!;
  return [because, text, next];
}

const RUNNING = {
  state: "running",
  worker: "here-1-a",
  attempt: 2,
  startedAt: NOW - 30_000,
  deadlineAt: NOW + 870_000,
} as const;
const ENTRY = {
  at: NOW,
  event: "crash",
  from: "running",
  actor: "system/recovery",
  epoch: 1,
  attempt: 3,
  startedAt: NOW,
  owner: "w-1",
} as const;

const SUSPECT = { counters: { ...NO_COUNTERS, crashes: 2 }, together: 3 } as const;

const scenes: readonly (readonly [title: string, fixture: Fixture, expected: readonly string[]])[] = [
  [
    "it runs",
    { job: { ...RUNNING, steps: [{ name: "load", result: 1, at: NOW, attempt: 2 }] } },
    [
      "running",
      "It has run for 30s (attempt 2) in worker here-1-a, whose last heartbeat was 4s ago; last step load; deadline in 14.5m.",
      "",
    ],
  ],
  [
    "it runs in a blocked loop, and its cancel was asked for",
    { job: { ...RUNNING, cancelRequested: true, deadlineAt: null }, workers: [aWorker({ loopLagMs: 12_000 })] },
    [
      "running",
      "It has run for 30s (attempt 2) in worker here-1-a, whose last heartbeat was 4s ago; its event loop has been blocked for 12s; last step none; no deadline. Its cancel was requested.",
      "",
    ],
  ],
  [
    "it is overdue",
    { job: { ...RUNNING, deadlineAt: NOW - 2_000 } },
    [
      "overdue",
      "It has run for 30s (attempt 2) in worker here-1-a, whose last heartbeat was 4s ago; last step none; deadline passed 2s ago.",
      "Its worker aborts it after the grace, or is killed if its loop is blocked; check again in a few seconds.",
    ],
  ],
  [
    "its worker is dead and nobody has noticed yet",
    { job: { ...RUNNING, steps: [{ name: "load", result: 1, at: NOW, attempt: 2 }] }, dead: ["here-1-a"] },
    [
      "owner-gone",
      "It was running (attempt 2) in worker here-1-a, which is dead; its last heartbeat was 4s ago; last step load. No process has taken it over yet.",
      "Start a worker, which recovers it at once, or: outlive recover",
    ],
  ],
  [
    "its worker is silent",
    { job: RUNNING, workers: [aWorker({ heartbeatAt: NOW - 600_000 })] },
    [
      "owner-silent",
      "It was running (attempt 2) in worker here-1-a, which is silent: frozen, cut off, or on a machine that is gone; its last heartbeat was 10m ago; last step none. No process has taken it over yet.",
      "A live worker takes it over when it has watched the silence for one lease; or: outlive recover --wait",
    ],
  ],
  [
    "it sleeps",
    { job: { waitsAt: "run.sleep#1", runAt: NOW + 7_200_000 } },
    ["sleeping", "It sleeps and continues in 2h (2026-11-15T14:00:00.000Z). It holds no slot meanwhile.", ""],
  ],
  [
    "it waits for a signal whose name has to be quoted for the shell",
    { job: { waitsAt: "run.signal(go now)#1", runAt: null } },
    [
      "waits-for-signal",
      'It waits for the signal "go now", without a time limit. It holds no slot meanwhile.',
      "outlive signal job-1 'go now'",
    ],
  ],
  [
    "it waits for its children",
    { job: { waitsAt: "run.wait#1", runAt: NOW + 60_000 }, children: { queued: ["c-2", "c-1"], running: ["c-3"] } },
    [
      "waits-for-jobs",
      "It waits for other jobs, for at most 1m more: 3 of its children have not ended, 1 of them run. It holds no slot meanwhile.",
      "outlive why c-3",
    ],
  ],
  [
    "a limit has no room for its key",
    { job: { heldBy: { limit: "tenant", key: "acme" } } },
    [
      "limit",
      'It is ready, but the limit "tenant" has no room for the key "acme": as many of its jobs run, or have started lately, as it allows. It is admitted when there is room.',
      "Wait, or give the key more room: outlive limit tenant acme --running N",
    ],
  ],
  [
    "its key is full",
    { job: HELD, key: { taken: 2, limits: { running: 2, intervalMs: 1_000 } } },
    [
      "limit",
      'It is ready, but the key "acme" of the limit "tenant" is full: 2 of 2 that may run at once do, or are about to. It is admitted when one of them has ended.',
      "Wait, or give the key more room: outlive limit tenant acme --running N",
    ],
  ],
  [
    "the rate of its key is spent",
    { job: HELD, key: { taken: 1, limits: { running: 2, intervalMs: 1_500, burst: 5 } } },
    [
      "rate",
      'It is ready, but as many jobs of the key "acme" of the limit "tenant" have started as its rate allows: one in 1.5s, and at most 5 at once after an idle time. It starts when its turn has come.',
      "Wait, or give the key a higher rate: outlive limit tenant acme --rate N",
    ],
  ],
  [
    "an earlier job of its strict key has not ended",
    { job: HELD, key: { limits: { strict: true } } },
    [
      "strict-order",
      'It is ready, but an earlier job of the key "acme" of the limit "tenant" has not ended: the order of this limit is strict, so the jobs of a key run one after the other, even through retries and waits.',
      "See the earlier jobs of its kind: outlive jobs --state queued, and outlive why ID of the first",
    ],
  ],
  [
    "its key is paused",
    {
      job: HELD,
      key: { limits: { strict: true }, paused: { reason: "unpaid", at: NOW - 60_000, until: NOW + 60_000 } },
    },
    [
      "key-paused",
      'It is ready, but the key "acme" of the limit "tenant" has been paused since 2026-11-15T11:59:00.000Z, for 1m more: unpaid.',
      "outlive limit tenant acme --resume",
    ],
  ],
  [
    "its key is held off",
    { job: HELD, key: { limits: { intervalMs: 1_000 }, heldOffUntil: NOW + 30_000 } },
    [
      "held-off",
      'It is ready, but a job has held off the key "acme" of the limit "tenant" for 30s more: nothing of it starts before then.',
      "",
    ],
  ],
  [
    "it is debounced",
    { job: { runAt: NOW + 5_000, latestAt: NOW + 60_000 } },
    [
      "debounced",
      "It is debounced and starts in 5s (2026-11-15T12:00:05.000Z), and every further event with its key postpones it.",
      "",
    ],
  ],
  [
    "it is debounced and must not be put off any more",
    { job: { runAt: NOW + 5_000, latestAt: NOW + 5_000 } },
    [
      "debounced",
      "It is debounced and starts in 5s (2026-11-15T12:00:05.000Z): that is the latest time that `max` allows.",
      "",
    ],
  ],
  [
    "it was debounced, and its first attempt failed",
    {
      job: {
        runAt: NOW + 5_000,
        latestAt: NOW + 60_000,
        attempt: 1,
        lastOutcome: "failed",
        error: { name: "E", message: "no" },
      },
    },
    ["not-due", "It is due in 5s (2026-11-15T12:00:05.000Z): its last attempt failed: no.", ""],
  ],
  [
    "it waits for the turn of its key",
    { job: { heldBy: { limit: "fair", key: "acme", turn: true } } },
    [
      "fair-turn",
      'It is ready, and waits until a worker has room and it is the turn of its key "acme": the keys of its kind are served one after the other, however many jobs each has.',
      "Wait, start more workers, or give the key more turns: outlive limit fair acme --weight N",
    ],
  ],
  [
    "it is throttled",
    { job: { heldBy: { limit: "throttle/60000", key: "mail/doc" } } },
    ["rate", "It is throttled: the previous job started less than 1m ago. It starts when that time has passed.", ""],
  ],
  [
    "contact with its workers was lost as often as it may crash",
    { job: { waitsForResolution: true, counters: { ...NO_COUNTERS, losses: 3 } } },
    [
      "contact-lost",
      "Contact with its worker was lost 3 times, and it is not known yet whether those workers died. It waits, because it may be what killed them.",
      "Check again later: a loss is resolved when the worker returns, when its death is proved, or after two leases. If it is harmless: outlive cancel, and enqueue it again.",
    ],
  ],
  [
    "the last worker that knew its kind was too old",
    {
      workers: [
        aWorker({
          state: "stopped",
          kinds: ["mail"],
          lastWord: "too old for the store: the store's schema is 2, this program knows 1",
        }),
      ],
    },
    [
      "schema-too-old",
      "Worker here-1-a (outlive 0.1.0) stopped because it is too old for the store: the store's schema is 2, this program knows 1.",
      "Upgrade the outlive package in the program that runs this kind, and start it again.",
    ],
  ],
  [
    "all who could run it are dead",
    { dead: ["here-1-a"] },
    ["no-worker", "No worker is alive (1 dead or silent).", "Start one: outlive work"],
  ],
  [
    "the store takes no writes",
    { failure: "database or disk is full" },
    [
      "degraded",
      "The store does not accept writes at the moment: database or disk is full.",
      "outlive check; free disk space or correct the file's permissions, and workers continue automatically.",
    ],
  ],
  [
    "it is not due",
    { job: { runAt: NOW + 90_000 } },
    ["not-due", "It is due in 1.5m (2026-11-15T12:01:30.000Z): it was enqueued for that time.", ""],
  ],
  [
    "it waits for its next attempt",
    { job: { runAt: NOW + 5_000, lastOutcome: "failed", error: { name: "Error", message: "refused" } } },
    ["not-due", "It is due in 5s (2026-11-15T12:00:05.000Z): its last attempt failed: refused.", ""],
  ],
  ["its kind is paused", { kind: { paused: true } }, ["paused", "The kind mail is paused.", "outlive resume mail"]],
  ["nobody works", { workers: [] }, ["no-worker", "No worker is alive.", "Start one: outlive work"]],
  [
    "nobody knows its kind",
    { workers: [aWorker({ kinds: ["render", "import"] })] },
    [
      "no-worker",
      "The only live worker does not know the kind mail.",
      "Start a worker that has a handler for mail; they know import, render.",
    ],
  ],
  [
    "the store is blocked",
    { writers: [{ pid: 77, command: "node stuck.ts", version: 1 }] },
    [
      "store-blocked",
      "Process 77 (node stuck.ts) holds the store's write lock and does not release it.",
      "Check process 77; if it is frozen or stuck inside a transaction, end it: nothing is lost.",
    ],
  ],
  [
    "it is a suspect, and a worker may take it",
    { job: SUSPECT, ahead: null, suspects: [{ worker: "here-1-a", count: 2, together: 4 }] },
    [
      "suspect",
      "It was in flight when 2 workers died or lost contact, so it runs with at most 2 other such jobs in one process. 1 of 1 worker may take it as soon as a slot is free and no job of a higher priority is ready.",
      "Check again; if this stays, raise the concurrency, or start more workers.",
    ],
  ],
  [
    "it is a suspect, and every worker holds too many others",
    {
      job: SUSPECT,
      ahead: null,
      workers: [aWorker(), aWorker({ id: "here-2-b" })],
      suspects: [
        { worker: "here-1-a", count: 3, together: 9 },
        { worker: "here-2-b", count: 1, together: 1 },
      ],
    },
    [
      "suspect",
      "It was in flight when 2 workers died or lost contact, so it runs with at most 2 other such jobs in one process. Worker here-1-a holds 3 of them, which is all that may run together (3). The other worker holds too many as well.",
      "Wait until those have ended, or start another worker.",
    ],
  ],
  [
    "it became due a moment ago and no worker has made it ready yet",
    { job: { runAt: NOW - 10 }, kind: { running: 0 }, workers: [aWorker({ heldCount: 2 })], ahead: null },
    [
      "about-to-run",
      "A worker has room for it (2 of 10 slots are taken, 0 ahead): it should start now.",
      "Check again; if this stays, read the workers' logs.",
    ],
  ],
  [
    "others are ahead",
    {},
    [
      "waiting-its-turn",
      "10 of 10 slots of 1 worker are taken, and 7 jobs of its kind are ahead of it.",
      "Wait, raise the concurrency, or start more workers.",
    ],
  ],
  [
    "somebody has room",
    { kind: { running: 2 }, workers: [aWorker({ heldCount: 2 })], ahead: 0, later: { state: "running", attempt: 1 } },
    [
      "about-to-run",
      "A worker has room for it (2 of 10 slots are taken, 0 ahead): it should start now.",
      "Check again; if this stays, read the workers' logs.",
    ],
  ],
  [
    "a worker has free slots, and runs as many of the kind as it may",
    { kind: { running: 2 }, workers: [aWorker({ heldCount: 2 })], ahead: 0 },
    [
      "waiting-its-turn",
      "2 of 10 slots are taken, but no worker takes it while 2 of its kind run: as many as `concurrency` allows of one kind (of a kind of request 256 in each process, if it is not named).",
      "Wait, raise the concurrency of mail, or start more workers.",
    ],
  ],
  [
    "it succeeded",
    { job: { state: "succeeded", finishedAt: NOW - 1_000 } },
    ["finished", "It succeeded at 2026-11-15T11:59:59.000Z.", ""],
  ],
  [
    "it is dead",
    { job: { state: "dead", finishedAt: NOW, error: { name: "Error", message: "refused" } } },
    ["finished", "It died at 2026-11-15T12:00:00.000Z: refused.", "outlive retry job-1"],
  ],
  [
    "it is quarantined",
    {
      job: {
        state: "quarantined",
        finishedAt: NOW,
        history: [
          { ...ENTRY, to: "quarantined", reason: "its worker died 3 times while it ran alone", incident: "i-9" },
        ],
      },
    },
    [
      "quarantined",
      "It was quarantined at 2026-11-15T12:00:00.000Z: its worker died 3 times while it ran alone.",
      "outlive incident i-9; when it is safe: outlive quarantine release job-1",
    ],
  ],
];

for (const [title, fixture, expected] of scenes)
  test(`why: ${title}`, async () => assert.deepEqual(await said(fixture), expected));

test("why: a job that does not exist has no explanation", async () => {
  const store = { inspect: { get: async () => null } } as unknown as Store;
  assert.equal(await explain({ store, deaths: async () => [], now: () => NOW, pause: async () => {} }, "job-1"), null);
});
